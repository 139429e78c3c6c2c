-- last_token is the last token that was granted, or 0.
local stored_token = redis.call('GET', fence)
local last_token = not stored_token and 0 or string.match(stored_token, '^%d+$') and tonumber(stored_token)
if not last_token or last_token >= 2^53 then
  return redis.error_reply('WRONGKIND the fence holds no number')
end

-- A token is the server's time in microseconds, or the last token plus one if that is higher. So tokens rise also after the fence has
-- expired or was lost. Tokens are reserved only while the last token is below the clock, because after a loss of the fence only the
-- clock keeps tokens rising. A second execution grants the last token that the first one reserved.
local last = redis.call('GET', fence)
if last and redis.call('PTTL', fence) == -1 then
  fence_ms = '0' -- Java shares the counter, whose INCR would not renew an expiry
end
last = last or '0'
token, reserved = string.match(last, '^%d+$') and tonumber(last), 0
if not token or token >= 2^53 then
  return redis.error_reply('WRONGKIND the fence holds no number')
end
if free or token == 0 then
  local time = redis.call('TIME')
  local clock = time[1] * 1000000 + time[2]
  if token < clock then
    token, reserved = clock, tonumber(wanted)
  else
    token = token + 1
  end
end

-- free is the number of free permits, 0 if they were never set. Nothing but an integer that Lua holds exactly is one.
local stored = redis.call('GET', permits)
local free = not stored and 0 or string.match(stored, '^-?%d+$') and tonumber(stored)
if not free or free > 2^53 or free < -2^53 then
  return redis.error_reply('WRONGKIND the key holds no number')
end

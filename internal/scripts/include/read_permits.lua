-- stored is the text of the number of free permits, or false if it was never set; free is the number, or 0.
-- Texts other than integers that Lua represents exactly are refused.
local stored = redis.call('GET', permits)
local free = not stored and 0 or string.match(stored, '^-?%d+$') and tonumber(stored)
if not free or free > 2^53 or free < -2^53 then
  return redis.error_reply('WRONGKIND the key holds no number')
end

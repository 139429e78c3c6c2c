-- free is the number of free permits, or 0 if it was never set. Texts other than integers that Lua represents exactly are refused.
if type(stored) == 'table' then
  return stored -- an error
end
local free = not stored and 0 or string.match(stored, '^-?%d+$') and tonumber(stored)
if not free or free > 2^53 or free < -2^53 then
  return redis.error_reply('WRONGKIND the key holds no number')
end

-- The waiter that is first in the line now learns when the lock ends by itself, for the case that its holder dies.
local first = redis.pcall('ZRANGE', line, 0, 0)[1]
if first then
  redis.pcall(verb, channel .. ':' .. string.match(first, '^[^:]*'), ready_in .. ' ' .. first)
end

-- The waiter that is first in the line now learns when the lock ends by itself, for the case that its holder dies. The next one learns that
-- it is to ask 60 ms later, for the case that the first one does not.
for place, waiter in ipairs(redis.pcall('ZRANGE', line, 0, 1)) do
  local in_ms = string.format('%.0f ', ready_in + 60 * (place - 1))
  redis.pcall(verb, channel .. ':' .. string.match(waiter, '^[^:]*'), in_ms .. waiter)
end

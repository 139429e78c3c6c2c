-- Readers have the lock now: those that wait may have it as well.
redis.pcall(verb, channel, '00') -- a hint must not fail the call
if redis.pcall('ZREM', line, 'r') == 1 then
  redis.pcall(verb, channel .. ':r', '0 r')
end

-- write_permits writes the number of free permits. The key keeps its expiry; with an idle expiry it lasts until that time
-- after the instant at which the last lease ends.
local function write_permits(number, instant)
  if idle_ms > 0 then
    redis.call('SET', permits, number, 'PX', life(instant))
  else
    redis.call('SET', permits, number, 'KEEPTTL')
  end
end

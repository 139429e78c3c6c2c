-- Wakes the first waiter in the line whose client hears it. The next one is its guard: it asks 60 ms later unless it is woken until then,
-- because the first one has not answered. Those whose clients do not hear are gone. ready_in is the time, ms, until the lock can be taken;
-- unless it is 0, the first one stays in the line.
--
-- A caller that has just come may take the lock before the waiter that was woken. That is faster while the lock is held for moments, and
-- ends when the first one has waited for 4 ms: then keep_for is that one, for which the script keeps the lock for up to 50 ms.
--
-- Waiters that are not in the line, as those of Redisson, hear '00' on the channel of the lock. While there are such, every fourth release
-- is theirs, and every one if nobody is in the line: yields is 2, the first one is told to ask 3 ms later, and the process that releases
-- has to wait as long with its next attempt. Otherwise yields is 0. followers are those in the line that listen too. nobody is a list
-- without waiters if the line is known to be empty.
local others = redis.pcall(verb, channel, '00') -- a hint: that the user may not publish must not fail a release that is done
local waiting, yields, keep_for = nobody or redis.pcall('ZRANGE', line, 0, 1), 0, nil
if ready_in == 0 and type(others) == 'number' and others > (waiting[1] and followers or 0)
  and (not waiting[1] or (redis.pcall('TIME')[2] or 0) % 4 == 0) then
  ready_in, yields = 3, 2
end
if waiting[1] then
  local first_place, woken, guarded, gone = 0, nil, nil, {nil}
  while waiting[1] and not guarded do
    for _, waiter in ipairs(waiting) do
      local in_ms = woken and ready_in + 60 or ready_in
      local hears = redis.pcall(verb, channel .. ':' .. string.match(waiter, '^[^:]*'), in_ms .. ' ' .. waiter)
      if hears == 0 then
        gone[#gone + 1] = waiter
      elseif woken then
        guarded = waiter
        break
      else
        woken = waiter
      end
    end
    first_place = first_place + #waiting
    waiting = guarded and {} or redis.pcall('ZRANGE', line, first_place, first_place + 99)
  end
  if woken and ready_in == 0 then
    local time = redis.pcall('TIME')
    local waited = (time[1] or 0) * 1000 + (time[2] or 0) / 1000 - (tonumber(redis.pcall('ZSCORE', line, woken)) or 0)
    keep_for = waited >= 4 and woken
    gone[#gone + 1] = woken
  end
  for from = 1, #gone, 1000 do
    redis.pcall('ZREM', line, unpack(gone, from, math.min(from + 999, #gone)))
  end
end

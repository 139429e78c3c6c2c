-- place is the place of the waiter in the line: 1, 2, or 3 for any behind them; 0 if Redis does not let it in; nil if it does not want
-- to. A waiter that asks again keeps its place. The line lasts as long as the last of them counts as alive. unheard is 1 if the waiter is
-- first and the holder's release may not wake it, but will be published on the channel of the lock. Which readers of a read/write lock will
-- wake it is not known.
local place, unheard
if waiter then
  local time = redis.call('TIME')
  local came = time[1] * 1000 + math.floor(time[2] / 1000) - waited
  place, unheard = 0, 0
  local lasts = redis.pcall('PEXPIRE', line, alive_ms) -- first, so that no line stays for ever
  if type(lasts) == 'number' and type(redis.pcall('ZADD', line, 'LT', came, waiter)) == 'number' then
    if lasts == 1 or redis.pcall('PEXPIRE', line, alive_ms) == 1 then
      local first = redis.pcall('ZRANGE', line, 0, 1)
      place = first[1] == waiter and 1 or first[2] == waiter and 2 or 3
      if place == 1 then
        unheard = mode == 'read' and 1 or 0
        local fields = unheard == 1 and {} or redis.pcall('HGETALL', name)
        for i = 2, #fields, 2 do
          local count = tonumber(fields[i]) or 0
          unheard = count > 0 and count < 1e9 and 1 or unheard
        end
      end
    end
  end
end

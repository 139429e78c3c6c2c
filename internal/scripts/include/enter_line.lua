-- place is the place of the waiter in the line: 1, 2, or 3 for any behind them; 0 if Redis does not let it in; nil if it does not want
-- to. A waiter that asks again keeps its place. The line lasts as long as the last of them counts as alive. unheard is 0: the holder's
-- release wakes the line.
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
    end
  end
end

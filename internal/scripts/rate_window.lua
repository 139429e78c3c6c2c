-- rate_window.lua  KEYS[1]=string used ARGV: limit, perMillis, fifo, {n, count}..  returns {used, endsMillis, granted..}
local limit, used, ends = tonumber(ARGV[1]), 0, tonumber(ARGV[2])
local v = redis.call('GET', KEYS[1])
local left = v and redis.call('PTTL', KEYS[1]) or -2
if v and left > 0 and left <= ends and string.match(v, '^%d+$') then
  -- What does not expire within a window, as after the clock stepped back, or is no number, is not ours: a new window begins.
  used, ends = tonumber(v), left
end
local reply, before, stopped = {0, ends}, used, false
for i = 4, #ARGV, 2 do
  local n, count, granted = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), 0
  if n > 0 and not stopped then
    granted = math.max(0, math.min(count, math.floor((limit - used) / n)))
    stopped = granted < count and ARGV[3] == '1'
  end
  used = used + granted * n
  reply[#reply + 1] = granted
end
if used > before then
  redis.call('SET', KEYS[1], string.format('%.0f', used), 'PX', ends)
end
reply[1] = used
return reply

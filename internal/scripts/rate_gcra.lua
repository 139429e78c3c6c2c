-- rate_gcra.lua  KEYS[1]=string tat[:num:den] ARGV: den, capUs, capNum, {us, num, count}.. [, 1=fifo]  returns {nowUs, tatUs, num, granted..}
local call = redis.call
local t, v = call('TIME'), call('GET', KEYS[1])
local now = t[1] * 1000000 + t[2]
local den, cap, capNum = tonumber(ARGV[1]), now + ARGV[2], tonumber(ARGV[3])
local tat, num = now, 0
if v then
  tat = tonumber(v)
  if not tat then -- Anything but a state that we wrote is taken for none.
    local us, part, of = string.match(v, '^(%d+):(%d+):(%d+)$')
    tat, num = tonumber(us) or now, tonumber(part) or 0
    if of and tonumber(of) ~= den then
      tat, num = tat + 1, 0 -- of another limit: a fraction we cannot keep is rounded up
    end
  end
  if not (tat >= now and tat <= cap + 60000001) then
    tat, num = now, 0 -- it is over, or lies further ahead than we ever write: the clock stepped back, or the limit was another
  end
end
local reply, fifo, any, stopped = {now, 0, 0}, #ARGV % 3 == 1, false, false
for i = 4, #ARGV - 2, 3 do
  local us, n, count, granted = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), 0
  while granted < count and not stopped do
    local to, toNum = tat + us, num + n
    if toNum >= den then to, toNum = to + 1, toNum - den end
    if to > cap or to == cap and toNum > capNum then
      stopped = fifo
      break
    end
    tat, num, granted, any = to, toNum, granted + 1, true
  end
  reply[#reply + 1] = granted
end
if any then
  call('SET', KEYS[1], num > 0 and string.format('%.0f:%.0f:%.0f', tat, num, den) or tat, 'PX', math.floor((tat - now) / 1000) + 1)
end
reply[2], reply[3] = tat, num
return reply

-- rate_gcra.lua  KEYS[1]=string tat[:num:den] ARGV: den, capUs, capNum, ceilingUs, fifo, {us, num, count}..  returns {nowUs, tatUs, num, granted..}
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local den, cap, capNum = tonumber(ARGV[1]), now + ARGV[2], tonumber(ARGV[3])
local tat, num = now, 0
local v = redis.call('GET', KEYS[1])
if v then
  -- Anything but a state that we wrote is taken for none.
  local whole, rest = string.match(v, '^(%d+)(.*)$')
  local part, of = string.match(rest or '', '^:(%d+):(%d+)$')
  tat, num = tonumber(whole) or now, tonumber(part) or 0
  if of and tonumber(of) ~= den then
    tat, num = tat + 1, 0 -- of another limit: a fraction we cannot keep is rounded up
  end
  if tat < now then
    tat, num = now, 0
  elseif tat > now + ARGV[4] then
    tat, num = now + ARGV[4], 0 -- the clock stepped back, or the limit was another
  end
end
local reply, any, stopped = {now, 0, 0}, false, false
for i = 6, #ARGV, 3 do
  local us, n, count, granted = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), 0
  while granted < count and not stopped do
    local to, toNum = tat + us, num + n
    if toNum >= den then to, toNum = to + 1, toNum - den end
    if to > cap or to == cap and toNum > capNum then
      stopped = ARGV[5] == '1'
      break
    end
    tat, num, granted, any = to, toNum, granted + 1, true
  end
  reply[#reply + 1] = granted
end
if any then
  local text = string.format(num > 0 and '%.0f:%.0f:%.0f' or '%.0f', tat, num, den)
  redis.call('SET', KEYS[1], text, 'PX', string.format('%.0f', math.floor((tat - now) / 1000) + 1))
end
reply[2], reply[3] = tat, num
return reply

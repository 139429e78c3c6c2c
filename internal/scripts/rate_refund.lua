-- rate_refund.lua  KEYS[1]=string as rate_gcra's ARGV: den, tatUs, num, backUs, backNum  returns 1 taken back, 0 not the last grant
local function text(tat, num)
  return string.format(num > 0 and '%.0f:%.0f:%.0f' or '%.0f', tat, num, ARGV[1])
end
local tat, num = tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('GET', KEYS[1]) ~= text(tat, num) then
  return 0
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
tat, num = tat - ARGV[4], num - ARGV[5]
if num < 0 then
  tat, num = tat - 1, num + ARGV[1]
end
if tat < now then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], text(tat, num), 'PX', string.format('%.0f', math.floor((tat - now) / 1000) + 1))
end
return 1

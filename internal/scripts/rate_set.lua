-- rate_set.lua  KEYS[1]=config KEYS[2]=value KEYS[3]=permits ARGV: try|set|update, rate, intervalMs, type, keepAliveMs, keep  returns 1 set, 0 not
local had = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type')
local complete = had[1] and had[2] and had[3]
if ARGV[1] == 'try' and complete or ARGV[1] == 'update' and not complete then
  return 0
end
redis.call('HSET', KEYS[1], 'rate', ARGV[2], 'interval', ARGV[3], 'type', ARGV[4], 'keepAliveTime', ARGV[5])
if ARGV[5] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if ARGV[1] == 'try' then
  return 1
end
if ARGV[6] == '0' or had[3] ~= ARGV[4] then
  redis.call('DEL', KEYS[2], KEYS[3])
  return 1
end
if ARGV[4] == '1' then
  return 1 -- each client has its log for itself
end
-- The log stays. Without its value the next call counts it anew, for this rate and interval; a value is left for peers that trust it.
local t = redis.call('TIME')
local edge = string.format('%.3f', (t[1] * 1000000 + t[2]) / 1000 - ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', edge)
local left = tonumber(ARGV[2])
for _, m in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  local a, b, c, d = string.byte(m, -4, -1)
  left = left - (#m > 4 and a + b * 256 + c * 65536 + d * 16777216 or 0)
end
redis.call('SET', KEYS[2], string.format('%.0f', left))
if ARGV[5] ~= '0' then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
end
return 1

-- rate_log_reserve.lua  KEYS[1]=config KEYS[2]=value KEYS[3]=permits ARGV: member, maxWaitUs  returns {rate, intervalMs, left, delayUs|-1 exceeds|-2-delayUs too long}, of PerClient {rate, intervalMs, keepAliveMs}
local c = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, ms, keep = tonumber(c[1]), tonumber(c[2]), tonumber(c[4]) or 0
if not (rate and ms and c[3] and rate > 0 and ms > 0 and rate % 1 + ms % 1 == 0 and rate + ms < 9e15) then return redis.error_reply('NOTCONFIGURED no limit') end
if c[3] == '1' then return keep > 0 and redis.call('PEXPIRE', KEYS[1], keep) and {rate, ms, keep} or {rate, ms, keep} end
local vkey, pkey, t, us = KEYS[2], KEYS[3], redis.call('TIME'), ms * 1000
local now = t[1] * 1000000 + t[2]
local function size(m)
  local a, b, x, d = string.byte(m, -4, -1)
  return #m > 4 and a + b * 256 + x * 65536 + d * 16777216 or 0
end
local n, mine = size(ARGV[1]), redis.call('ZSCORE', pkey, ARGV[1])
if n > rate then return {rate, ms, 0, -1} end
local edge = string.format('%.3f', (now - us) / 1000)
redis.call('ZREMRANGEBYSCORE', pkey, string.format('(%.3f', (now + us + 6e7) / 1000), '+inf') -- further ahead than we ever write
local list, left = redis.call('ZRANGEBYSCORE', pkey, '(' .. edge, '+inf', 'WITHSCORES'), rate
for i = 1, #list, 2 do left = left - size(list[i]) end
if mine then return {rate, ms, left, math.max(0, math.floor(mine * 1000 - now + 0.5))} end
-- Not before the newest entry, nor before enough of the oldest have left: so any window that holds it holds no more than the rate.
local at, i, freed = now, 1, left
while freed < n do
  freed, at, i = freed + size(list[i]), list[i + 1] * 1000 + us, i + 2
end
at = math.floor(math.max(at, now, #list > 0 and list[#list] * 1000 or 0) + 0.5)
if at - now > tonumber(ARGV[2]) then return {rate, ms, left, now - at - 2} end
redis.call('ZREMRANGEBYSCORE', pkey, '-inf', edge)
redis.call('ZADD', pkey, string.format('%.3f', at / 1000), ARGV[1])
redis.call('SET', vkey, string.format('%.0f', left - n))
local ttl = keep
if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) else ttl = redis.call('PTTL', KEYS[1]) end
if ttl > 0 then redis.call('PEXPIRE', vkey, ttl) redis.call('PEXPIRE', pkey, ttl) end
return {rate, ms, left - n, at - now}

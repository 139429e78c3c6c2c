-- rate_log.lua  KEYS[1]=config KEYS[2]=value KEYS[3]=permits ARGV: lastRate, fifo, member..  returns {rate, intervalMs, left, resetUs, 0 granted|delayUs|-1..}, of PerClient {rate, intervalMs, keepAliveMs}
local c = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, ms, keep = tonumber(c[1]), tonumber(c[2]), tonumber(c[4]) or 0
if not (rate and ms and c[3] and rate > 0 and ms > 0 and rate % 1 + ms % 1 == 0 and rate + ms < 9e15) then return redis.error_reply('NOTCONFIGURED no limit') end
local vkey, pkey, t, us, write = KEYS[2], KEYS[3], redis.call('TIME'), ms * 1000, #ARGV > 2
if write and keep > 0 then redis.call('PEXPIRE', KEYS[1], keep) end if c[3] == '1' then return {rate, ms, keep} end
local now = t[1] * 1000000 + t[2]
local edge, stamp = string.format('%.3f', (now - us) / 1000), string.format('%.3f', now / 1000)
local function size(m) local a, b, x, d = string.byte(m, -4, -1) return #m > 4 and a + b * 256 + x * 65536 + d * 16777216 or 0 end
local function sum(list) local s = 0 for _, m in ipairs(list) do s = s + size(m) end return s end
local had, old = tonumber(redis.call('GET', vkey) or ''), redis.call('ZRANGEBYSCORE', pkey, '-inf', edge)
local left = had and had % 1 == 0 and had + sum(old)
if not left or left > rate or ARGV[1] ~= c[1] then left = rate - sum(redis.call('ZRANGEBYSCORE', pkey, '(' .. edge, '+inf')) end
local reply, add, wants = {rate, ms, left, us}, {}, {}
local have = write and redis.call('ZMSCORE', pkey, unpack(ARGV, 3)) or {}
for i = 3, #ARGV do
  local n, stop = size(ARGV[i]), ARGV[2] == '1' and #wants > 0
  reply[i + 2] = n > rate and -1 or 0
  if n <= rate and not have[i - 2] then
    if n > left or stop then wants[#wants + 1] = {n, i + 2}
    else left, add[#add + 1], add[#add + 2] = left - n, stamp, ARGV[i] end
  end
end
if write and #old > 0 then redis.call('ZREMRANGEBYSCORE', pkey, '-inf', edge) end if #add > 0 then redis.call('ZADD', pkey, unpack(add)) end
if write and left ~= had then redis.call('SET', vkey, string.format('%.0f', left)) end
local ttl = write and (keep > 0 and keep or redis.call('PTTL', KEYS[1])) or -1
if ttl > 0 then redis.call('PEXPIRE', vkey, ttl) redis.call('PEXPIRE', pkey, ttl) end
local last, k, freed, at, page = #add == 0 and redis.call('ZREVRANGE', pkey, 0, 0, 'WITHSCORES')[2] or stamp, 0, left, 0, {}
if #wants > 0 and last * 1000 > now + us + 6e7 then -- further ahead than we ever write: the clock stepped back
  return redis.call('ZREMRANGEBYSCORE', pkey, string.format('(%.3f', (now + us + 6e7) / 1000), '+inf') and redis.call('DEL', vkey) and redis.error_reply('STALE') end
reply[3], reply[4] = left, left < rate and math.max(0, math.floor(last * 1000 + us - now + 0.5)) or 0
table.sort(wants, function(a, b) return a[1] < b[1] end)
for _, want in ipairs(wants) do -- the k oldest entries free what it takes; if all do not, the value is wrong
  while freed < want[1] do
    if k % 128 == 0 then page = redis.call('ZRANGE', pkey, k, k + 127, 'WITHSCORES') end
    local m = page[k % 128 * 2 + 1]
    if not m then return redis.call('DEL', vkey) and redis.error_reply('STALE') end
    freed, at, k = freed + size(m), page[k % 128 * 2 + 2] * 1000, k + 1
  end
  reply[want[2]] = math.max(1, math.floor(at + us - now + 0.5)) end return reply

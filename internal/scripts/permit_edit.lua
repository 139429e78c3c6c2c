--[[
Changes the number of leased permits. A record key per call keeps the result, so that a repeated call changes
nothing.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 record key of the call (string)
         4 permits of the fair semaphore of that name, or for a fair one of the plain one
ARGV     1 try (to set what was never set), set or add   2 permits   3 PUBLISH or SPUBLISH   4 channel
         5 expiry of the record key, ms   6 idle expiry, ms, or 0
Returns  1 done, 0 not
Errors   WRONGKIND the key holds no number, or the name is that of the other kind
]]
local permits, leases, record_key, other_permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local op, n, verb, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local record_key_ms, idle_ms = ARGV[5], tonumber(ARGV[6])

-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
local record = redis.call('GET', record_key)
if record then
  return tonumber(record) -- this call was executed before, and its reply lost
end
-- include: read_clock
-- include: read_permits
-- include: check_permits
if not stored and redis.call('EXISTS', other_permits) == 1 then
  return redis.error_reply('WRONGKIND the name is that of a semaphore of the other kind')
end
local held = redis.call('ZCARD', leases)
-- include: count_expired
local gone_until = now
if stored then
  free = free + expired
elseif held > 0 then -- they are of a semaphore that is gone, and give nothing to the one that is set now
  redis.call('ZREMRANGEBYSCORE', leases, 1, 0)
  expired, gone_until = held, '+inf'
end
-- include: idle
-- include: write_permits
last_end = stored and last_end or now

local result, target = 1, free
if op == 'try' and stored then
  result = 0
elseif op == 'set' and stored then
  target = n - (held - expired)
else
  target = free + n
end

-- write_permits comes first: if Redis refuses its SET, nothing has been written.
local changes = not stored or target ~= free - expired
if changes or idle_ms > 0 then
  write_permits(target, last_end)
end
redis.call('SET', record_key, result, 'PX', record_key_ms)
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', gone_until)
end
if changes then
  wake_waiters(verb, channel, target)
end
return result

--[[
Changes the number of leased permits. A key of the call's own remembers what it returned, so that a second execution changes nothing.

KEYS     1 permits (string: free permits)   2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 the call's record (string)   4 permits of the other kind of leased semaphore, fair or not, of that name
ARGV     1 try (where nothing is set), set or add   2 permits   3 PUBLISH or SPUBLISH   4 channel
         5 how long the record is kept, ms   6 with try, the expiry of the semaphore, ms, or 0
Returns  1 done, 0 not
Errors   WRONGKIND the key holds no number, or the name is that of the other kind
]]
local permits, leases, record, other_permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local op, n, verb, channel, kept_ms, expiry_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local done = redis.call('GET', record)
if done then
  return tonumber(done) -- by an earlier execution of this same call, whose reply was lost
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: read_permits
if not stored and redis.call('EXISTS', other_permits) == 1 then
  return redis.error_reply('WRONGKIND the name is that of a semaphore of the other kind')
end
local held = redis.call('ZCARD', leases)
-- include: count_over
if stored then
  free = free + over
end

local result, target = 1, free
if op == 'try' and stored then
  result = 0
elseif op == 'set' and stored then
  target = n - (held - over)
else
  target = free + n
end

-- SET is refused before anything is written, or not at all.
local changes = not stored or target ~= free - over
if changes and not stored and expiry_ms and expiry_ms ~= '0' then
  redis.call('SET', permits, string.format('%.0f', target), 'PX', expiry_ms)
elseif changes then
  redis.call('SET', permits, string.format('%.0f', target), 'KEEPTTL')
end
redis.call('SET', record, result, 'PX', kept_ms)
if over > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
if changes and target > 0 then
  redis.pcall(verb, channel, string.format('%.0f', target)) -- a hint must not fail the call
end
return result

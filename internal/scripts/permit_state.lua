--[[
Reads the number of leased permits, and how long the lease of one of them lasts. It reclaims expired permits.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 id, optional
Returns  {1 if the permits were ever set else 0, free, held, ms to the end of the id's lease, -1 for ever, -2
         not held}
Errors   WRONGKIND the key holds no number
]]
local permits, leases = KEYS[1], KEYS[2]
local verb, channel, id = ARGV[1], ARGV[2], ARGV[3]
-- include: forever
-- include: read_clock
-- include: read_permits
local held = redis.call('ZCARD', leases)
-- include: count_expired
local ends = id and tonumber(redis.call('ZSCORE', leases, id) or now)

if stored and expired > 0 then
  free = free + expired
  redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
end
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
if stored and expired > 0 and free > 0 then
  redis.pcall(verb, channel, string.format('%.0f', free)) -- a hint must not fail the call
end

local lease_ms = -2
if ends == forever then
  lease_ms = -1
elseif ends and ends > now then
  lease_ms = math.ceil(ends - now)
end
return {stored and 1 or 0, free, held - expired, lease_ms}

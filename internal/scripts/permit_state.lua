--[[
Reads the number of free leased permits. It reclaims expired permits.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 PUBLISH or SPUBLISH   2 channel
Returns  the free permits, 0 if they were never set
Errors   WRONGKIND the key holds no number
]]
local permits, leases = KEYS[1], KEYS[2]
local verb, channel = ARGV[1], ARGV[2]
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
-- include: read_clock
-- include: read_permits
-- include: check_permits
-- include: count_expired

if stored and expired > 0 then
  free = free + expired
  redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
end
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
if stored and expired > 0 then
  wake_waiters(verb, channel, free)
end
return free

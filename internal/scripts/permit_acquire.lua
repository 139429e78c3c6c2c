--[[
Acquires leased permits: reclaims expired permits, then grants the longest prefix of the requests that fits.
Clients choose the ids, so that a repeated call finds what it was granted.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 fence (string: the last token)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 expiry of the fence, ms   4 idle expiry, ms, or 0
         and per request   lease, ms   number of permits   their ids, 16 bytes each
Returns  {1 if the permits were ever set else 0, free, held, ms to the next end of a lease or -1,
         then per request its token or 0}; held and the next end are set only if a request was not granted
Errors   WRONGKIND the key, or the fence, holds no number
]]
local permits, leases, fence = KEYS[1], KEYS[2], KEYS[3]
local verb, channel, fence_ms, idle_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first_request = 5
-- include: forever
-- include: read_clock

-- include: read_fence
-- include: read_permits
local expiry = redis.call('PTTL', permits)
-- include: count_expired
if stored then
  free = free + expired
end

-- Decide each request. The first that does not fit has those behind it refused. new_leases alternates end and
-- id.
local reply, new_leases = {stored and 1 or 0, free, 0, -1}, {}
local token, taken, refuse_rest, all_granted = math.max(last_token, clock - 1), 0, not stored, true
local i = first_request
while ARGV[i] do
  local lease, n, first = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), i + 2
  local ends = tonumber(redis.call('ZSCORE', leases, ARGV[first]) or 0)
  local granted = ends > now -- by an earlier execution, whose reply was lost
  if not granted then
    refuse_rest = refuse_rest or taken + n > free
    if not refuse_rest then
      granted, taken = true, taken + n
    end
  end
  if granted then
    for j = first, first + n - 1 do
      new_leases[#new_leases + 1] = string.format('%.0f', now + lease)
      new_leases[#new_leases + 1] = ARGV[j]
    end
    token = token + 1
  else
    all_granted = false
  end
  reply[#reply + 1] = granted and token or 0
  i = first + n
end
reply[2] = free - taken

-- Tell those that wait how many permits are held and when the next lease ends.
if not all_granted then
  reply[3] = redis.call('ZCARD', leases) - expired + taken
  local after_now = redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local next_end = tonumber(after_now[2] or forever)
  for j = 1, #new_leases, 2 do
    next_end = math.min(next_end, new_leases[j])
  end
  if next_end ~= forever then
    reply[4] = math.ceil(next_end - now)
  end
end

-- include: idle
-- include: write_permits
for j = 1, #new_leases, 2 do
  last_end = math.max(last_end, new_leases[j])
end
if idle_ms > 0 then
  expiry, fence_ms = tonumber(life(last_end)), life(last_end)
end

-- SET comes first, and is undone if ZADD is refused. If expired leases go as well, a ZADD that changes
-- nothing comes before.
if expired > 0 and taken > 0 then
  redis.call('ZADD', leases, 'XX', 0, '')
end
if #new_leases > 0 or stored and (expired > 0 or idle_ms > 0) then
  write_permits(free - taken, last_end)
end
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
for from = 1, #new_leases, 2000 do
  -- GT: a late copy must not shorten a lease that was renewed meanwhile.
  local added = redis.pcall('ZADD', leases, 'GT', unpack(new_leases, from, math.min(from + 1999, #new_leases)))
  if type(added) == 'table' then
    redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
    return added
  end
end
if #new_leases > 0 then
  redis.call('SET', fence, string.format('%.0f', token), 'PX', fence_ms)
end
if stored and expired > 0 and free > taken then
  redis.pcall(verb, channel, string.format('%.0f', free - taken)) -- a hint must not fail the call
end
if expiry > 0 and #new_leases > 0 then
  redis.pcall('PEXPIRE', leases, string.format('%.0f', expiry)) -- as Redisson does; if it fails, the leases end by themselves
end
return reply

--[[
Acquires leased permits: grants the longest prefix of the requests that fits, and reclaims expired permits if they are
needed. Clients choose the ids, so a repeated call finds the permits that it was granted.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 fence (string: the last token)
         4 permits of the semaphore of the other kind of that name, read if the number of permits is declared and not set
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 expiry of the fence, ms, which begins anew once an hour
         4 idle expiry, ms, or 0   5 permits of all requests
         6 declared number of permits, set with the first grant if none is set, or 0
         7 empty, or to wait in the line: the waiter, a blank, the ms for which it counts as alive, a blank,
           = if the first request that waits was that of the last call too,
           and with commas: for each request the ms for which it has waited, or - if it does not wait; then 0 if more requests wait
         and per request   lease, ms   number of permits   their ids, 16 bytes each
Returns  {1 if the permits are set or declared else 0, free, held, ms to the next end of a lease or of the semaphore, or -1,
         then per request its token or 0, and of a waiter its place in the line and unheard: see take_place}; the next end is set only if
         a request was not granted, and for those in the line only of what they are to ask for: the first one, and 60 ms later the second,
         ask when a lease ends, or nothing is kept for another any more, all when the semaphore does; free and held are set also if the
         number of permits is declared
Errors   WRONGKIND the key, or the fence, holds no number, or the name is that of the other kind
]]
local permits, leases, fence, other_permits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb, channel, fence_ms, idle_ms, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4] + 0, ARGV[5] + 0
local declared, in_line, first_request = ARGV[6] + 0, ARGV[7], 8
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
-- include: forever
-- include: read_clock
-- include: read_with_kept
-- include: check_permits
-- include: declared_permits
-- include: usable_permits
-- include: tokens

-- If all requests fit, and nobody came before, the leases are not read: expired permits stay until they are needed, and ZADD finds the ids
-- that an earlier execution with a lost reply has granted.
local read_leases, expired = not stored or wanted > unclaimed or others_came, 0
if read_leases then
  expired = redis.call('ZCOUNT', leases, '-inf', now)
end
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, 1, 0) -- changes nothing, and proves that they can be removed
  if stored then
    free, usable, unclaimed = free + expired, usable + expired, unclaimed + expired
  end
end

-- lease_ends has for each request the end of the lease of its first id, or false.
local lease_ends, first_ids, at = {nil}, {nil}, first_request
while read_leases and ARGV[at] do
  first_ids[#first_ids + 1] = ARGV[at + 2]
  at = at + 2 + ARGV[at + 1]
end
for from = 1, #first_ids, 1000 do
  local ends = redis.call('ZMSCORE', leases, unpack(first_ids, from, math.min(from + 999, #first_ids)))
  for j = 1, #ends do
    lease_ends[#lease_ends + 1] = ends[j]
  end
end

-- Decide each request. The first request that does not fit is refused, with all after it. new_leases alternates end and id.
-- Until the last token is known, a token is the number of the grant.
local new_leases, taken, refuse_rest, counts = {nil, nil}, 0, not stored, {nil}
-- lease_end is the end of a lease of last_lease ms, as a text: Lua needs as long to write a number as Redis needs for a command.
local entries, last_lease, lease_end = 0, nil, nil
local reply, requests, grants = {stored and 1 or 0, 0, 0, -1, nil}, 0, 0 -- with room for one request
local i = first_request
while ARGV[i] do
  local lease, n, first = ARGV[i], ARGV[i + 1] + 0, i + 2
  i, requests = first + n, requests + 1
  local granted = read_leases and tonumber(lease_ends[requests] or 0) > now
  if not granted then
    refuse_rest = refuse_rest or read_leases and not fits(n, taken, requests)
    if not refuse_rest then
      granted, taken = true, taken + n
    end
  end
  if waiter then
    counts[requests] = n
  end
  if granted then
    if lease ~= last_lease then
      last_lease, lease_end = lease, string.format('%d', now + lease)
    end
    for j = first, i - 1 do
      new_leases[entries + 1], new_leases[entries + 2] = lease_end, ARGV[j]
      entries = entries + 2
    end
    grants = grants + 1
  end
  reply[4 + requests] = granted and grants or 0
end

-- Tell waiters how many permits are free and held, and when the next lease ends.
if grants < requests or declared > 0 then
  reply[2], reply[3] = free - taken, redis.call('ZCARD', leases) - expired + taken
end
if grants < requests then
  local after_now = redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local next_end = math.min(tonumber(after_now[2] or forever), kept_until or forever)
  for j = 1, #new_leases, 2 do
    next_end = math.min(next_end, new_leases[j])
  end
  if next_end ~= forever then
    reply[4] = math.ceil(next_end - now)
  end
end
local expiry = stored and redis.call('PTTL', permits) or 0

-- include: idle
-- include: write_permits
if idle_ms > 0 then
  for j = 1, #new_leases, 2 do
    last_end = math.max(last_end, new_leases[j])
  end
  expiry, fence_ms = life(last_end), life(last_end)
end

-- The SETs come first, and are undone if ZADD is refused. A number that was never set, or was deleted, is not created.
-- Expired leases are removed last: while a slot of a cluster migrates, Redis refuses a key that the script has emptied.
local last_token, stored_token
if grants > 0 then
  last_token, stored_token = reserve_tokens(fence, grants)
  if not last_token then
    return stored_token or redis.error_reply('WRONGKIND the fence holds no number')
  end
end
if stored and (grants > 0 or expired > 0 or idle_ms > 0) then
  write_permits(free - taken, last_end)
end
local added, reclaimed = 0, 0
for from = 1, #new_leases, 2000 do
  -- GT: a late copy must not shorten a lease that was renewed meanwhile.
  local new = redis.pcall('ZADD', leases, 'GT', unpack(new_leases, from, math.min(from + 1999, #new_leases)))
  if type(new) == 'table' then
    if stored then
      redis.call('SET', permits, stored, 'KEEPTTL')
    end
    return_tokens(fence, stored_token)
    return new
  end
  added = added + new
end
if expired > 0 then
  reclaimed = redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
if stored and reclaimed - added ~= expired - taken then -- an earlier execution has taken some of the permits
  redis.call('SET', permits, stored + reclaimed - added, 'KEEPTTL')
end

if grants > 0 then
  local before = keep_tokens(fence, grants, last_token, fence_ms, idle_ms > 0)
  for j = 5, 4 + requests do
    reply[j] = reply[j] > 0 and before + reply[j] or 0
  end
end
if expiry > 0 and grants > 0 then
  redis.pcall('PEXPIRE', leases, expiry) -- as Redisson does; if it fails, the leases end by themselves
end

-- The rest are hints, which must not fail the call. The first request that waits, and does not want more than there are, is the one
-- for which the waiter is in the line.
local later, wanted_later, left_to_it = nil, nil, usable - taken
if waiter and stored and grants < requests then
  for request = 1, requests do
    if reply[4 + request] == 0 and wait_of(request) and counts[request] <= reply[2] + reply[3] then
      later, wanted_later = request, counts[request]
      break
    end
  end
end
-- include: take_place
if place == 3 then
  reply[4] = -1
elseif place == 2 and reply[4] >= 0 then
  reply[4] = reply[4] + 60
end
if stored and grants < requests and expiry > 0 then
  reply[4] = reply[4] < 0 and expiry or math.min(reply[4], expiry)
end
if waiter then
  reply[5 + requests], reply[6 + requests] = place, unheard
end
if stored and place ~= 1 and (expired > 0 or others_next) then
  wake_waiters(verb, channel, free - taken)
end
return reply

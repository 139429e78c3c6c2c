--[[
Serves a fair semaphore: removes ids that leave, grants requests that fit, queues requests that wait, and assigns
free permits in order of arrival. The first id of a request identifies it, so that a repeated call finds the
result of the first one.

Permits assigned to a queued request are entries of leases until its process claims them by a call with the same
ids. An assignment ends when the process no longer counts as alive. Then its permits are reclaimed for the
next request.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 queue (zset: request -> position)
         4 alive (zset: request -> the instant, ms, until which its process counts as alive without another call)
         5 needs (hash: request -> its process, 32 bytes, and the ids of its permits, 16 bytes each)
         6 fence (string: the last token)
         7 permits of the plain semaphore of that name, read if the number of permits is declared and not set
ARGV     1 PUBLISH or SPUBLISH   2 channel prefix   3 how long a process counts as alive, ms
         4 process, 32 bytes
         5 expiry of the fence, ms   6 idle expiry, ms, or 0   7 declared number of permits, set if none is set, or 0
         8 number of ids that leave   their ids
         and per request   lease, ms   1 if it waits else 0   number of permits   their ids
Returns  {{per id that leaves 1 if it was held else 0}, 1 if the permits are set else 0, free, held,
         ms to the next end of a lease or of the semaphore, or -1, then per request its token or 0};
         the next end is set only if a request has no token, held also if the number of permits is declared
Errors   WRONGKIND the key, or the fence, holds no number, or the name is that of the other kind
]]
local permits, leases, queue, alive, needs, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local other_permits = KEYS[7]
local verb, channel, alive_ms, process, fence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local idle_ms, declared, leaving, first_leaving = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), 9
-- include: forever
-- include: read_clock

-- include: read_fence
-- include: read_permits
-- include: check_permits
-- include: declared_permits
local queued = redis.call('ZCARD', queue)
-- include: count_expired

-- The requests of the call.
local requests, calls_for, i = {}, {}, first_leaving + leaving
while ARGV[i] do
  local n, first = tonumber(ARGV[i + 2]), i + 3
  local request = {id = ARGV[first], lease = ARGV[i], waits = ARGV[i + 1] == '1', n = n, first = first, last = first + n - 1}
  requests[#requests + 1], calls_for[request.id] = request, true
  i = first + n
end

-- need_of returns the permits of a queued request, 0 if its process is no longer alive, the instant until which that counts as alive,
-- and its entry of needs.
local function need_of(id)
  local need = redis.call('HGET', needs, id)
  local alive_until = math.min(tonumber(redis.call('ZSCORE', alive, id) or 0), now + alive_ms)
  return alive_until > now and need and #need / 16 - 2 or 0, alive_until, need
end

-- An id that leaves is held, or belongs to a queued request, or neither.
local removed, held_leaving, gone_from_queue, leaves = {}, {}, {}, {}
for j = 1, leaving do
  local id = ARGV[first_leaving + j - 1]
  local ends = redis.call('ZSCORE', leases, id)
  removed[j] = ends and tonumber(ends) > now and not leaves[id] and 1 or 0
  if removed[j] == 1 then
    held_leaving[#held_leaving + 1] = id
  end
  if queued > 0 and not leaves[id] and redis.call('ZSCORE', queue, id) then
    gone_from_queue[#gone_from_queue + 1] = id
  end
  leaves[id] = true
end
if stored then
  free = free + expired + #held_leaving
end

-- The dead at the start of the queue leave it too, whether permits are free or not. front is the rank of the first request that
-- stays.
local front = 0
while front < queued do
  local id = redis.call('ZRANGE', queue, front, front)[1]
  if not leaves[id] then
    if calls_for[id] or need_of(id) > 0 then
      break
    end
    gone_from_queue[#gone_from_queue + 1] = id
  end
  front = front + 1
end

-- A request is held already, or is granted at once because nobody waits, or has to be queued, or is not granted.
local entering, enters = {}, {}
for _, request in ipairs(requests) do
  local ends = tonumber(redis.call('ZSCORE', leases, request.id) or 0)
  if ends > now then
    request.ends = ends
  elseif stored and front == queued and #entering == 0 and request.n <= free then
    request.granted = true
    free = free - request.n
  elseif stored and request.waits then
    entering[#entering + 1], enters[request.id] = request, request
    request.queued = queued > 0 and redis.call('ZSCORE', queue, request.id)
  end
end

local uses_queue = queued > 0 or #entering > 0
local held, next_end = 0, forever
if uses_queue or #requests > 0 then
  held = redis.call('ZCARD', leases) - expired - #held_leaving
  local after_now = redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  next_end = tonumber(after_now[2] or forever)
end

-- next_in_queue iterates over the queue: the queued requests that do not leave, then those that enter.
local rank, entered = front, 0
local function next_in_queue()
  while rank < queued do
    local id = redis.call('ZRANGE', queue, rank, rank)[1]
    rank = rank + 1
    if not leaves[id] then
      return id
    end
  end
  repeat
    entered = entered + 1
  until not entering[entered] or not entering[entered].queued
  return entering[entered] and entering[entered].id
end

-- Assign free permits to the first requests of the queue. Drop requests whose process is no longer alive. The lease of an
-- assignment ends no later than its process counts as alive. Until the assignment is claimed, the end has half a
-- millisecond. new_leases alternates end and id.
local new_leases, hints = {}, {}
for id in next_in_queue do
  local request = enters[id]
  if request then
    if request.n > free then
      break
    end
    request.granted = true
    free = free - request.n
  else
    local n, alive_until, need = need_of(id)
    if n > free then
      break
    end
    free, held = free - n, held + n
    for j = 1, n do
      new_leases[#new_leases + 1] = string.format('%.0f', alive_until) .. '.5'
      new_leases[#new_leases + 1] = string.sub(need, 17 + 16 * j, 32 + 16 * j)
    end
    if n > 0 then
      next_end = math.min(next_end, alive_until)
      hints[#hints + 1] = {process = string.sub(need, 1, 32), permits = n}
    end
  end
  if not request or request.queued then
    gone_from_queue[#gone_from_queue + 1] = id
  end
end

-- A request that is granted, or claims what it was assigned, has a token. A lease that was claimed before is not
-- shortened: this may be a late copy. longer_leases alternates end and id.
local first_token = math.max(last_token, clock - 1)
local tokens, token, longer_leases, all_granted = {}, first_token, {}, true
for k, request in ipairs(requests) do
  tokens[k] = 0
  if request.ends or request.granted then
    token = token + 1
    tokens[k] = token
    local claimed_before = request.ends and request.ends % 1 == 0
    local list = claimed_before and longer_leases or new_leases
    for j = request.first, request.last do
      list[#list + 1] = string.format('%.0f', now + request.lease)
      list[#list + 1] = ARGV[j]
    end
    if request.granted then
      held, next_end = held + request.n, math.min(next_end, now + request.lease)
    end
  else
    all_granted = false
  end
end
local expiry = stored and not all_granted and redis.call('PTTL', permits) or 0
-- Without an idle expiry, the keys of a queue end with the last process that counts as alive.
local last_alive = #entering > 0 and redis.call('ZREVRANGE', alive, 0, 0, 'WITHSCORES')[2] or 0
local queue_left = idle_ms == 0 and #entering > 0 and redis.call('PTTL', queue) or -1
local queue_expires = queue_left ~= -1 -- the queue is new, or expires already
local last_position = #entering > 0 and redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2] or 0

-- include: idle
-- include: write_permits
-- include: last_that_stays
if idle_ms > 0 then
  last_end = last_that_stays(held_leaving, leaves)
  for _, request in ipairs(requests) do
    last_end = math.max(last_end, now + request.lease)
  end
  if uses_queue then
    last_end = math.max(last_end, now + alive_ms)
  end
  fence_ms, expiry = life(last_end), 0 -- each query defers the expiry
end

-- Make each later call once in a form that changes nothing, so that Redis refuses it here or not at all. After a ZREM,
-- Redis also accepts writes while memory is short: a release must succeed then.
if leaving > 0 then
  redis.call('ZREM', leases, '')
end
if uses_queue or #requests > 0 then
  redis.call('ZADD', leases, 'XX', 0, '')
end
if uses_queue then
  redis.call('ZREM', queue, '')
  redis.call('ZREM', alive, '')
  redis.call('HDEL', needs, '')
end
if queue_expires then
  redis.call('PEXPIRE', queue, math.max(queue_left, 1))
end
if #entering > 0 then
  redis.call('HSET', needs, '', '')
  redis.call('HDEL', needs, '')
end

-- Add first, remove last: while a slot of a cluster migrates, Redis refuses a key that the script has emptied.
if stored then
  write_permits(free, last_end)
end
if token > first_token then
  redis.call('SET', fence, string.format('%.0f', token), 'PX', fence_ms)
end
for from = 1, #new_leases, 2000 do
  redis.call('ZADD', leases, unpack(new_leases, from, math.min(from + 1999, #new_leases)))
end
for from = 1, #longer_leases, 2000 do
  redis.call('ZADD', leases, 'XX', 'GT', unpack(longer_leases, from, math.min(from + 1999, #longer_leases)))
end
-- A queued request keeps its position.
for _, request in ipairs(entering) do
  if not request.granted then
    last_position = last_position + 1
    redis.call('HSET', needs, request.id, process .. table.concat(ARGV, '', request.first, request.last))
    redis.call('ZADD', queue, 'NX', last_position, request.id)
    redis.call('ZADD', alive, string.format('%.0f', now + alive_ms), request.id)
  end
end
if idle_ms > 0 then
  redis.call('PEXPIRE', leases, life(last_end))
end
if queue_expires then
  local lasts = string.format('%.0f', math.max(last_alive - now, alive_ms))
  redis.call('PEXPIRE', queue, lasts)
  redis.call('PEXPIRE', alive, lasts)
  redis.call('PEXPIRE', needs, lasts)
end
if idle_ms > 0 and uses_queue then
  redis.call('PEXPIRE', queue, life(last_end))
  redis.call('PEXPIRE', alive, life(last_end))
  redis.call('PEXPIRE', needs, life(last_end))
end

if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
for from = 1, #held_leaving, 1000 do
  redis.call('ZREM', leases, unpack(held_leaving, from, math.min(from + 999, #held_leaving)))
end
for from = 1, #gone_from_queue, 1000 do
  local last = math.min(from + 999, #gone_from_queue)
  redis.call('ZREM', queue, unpack(gone_from_queue, from, last))
  redis.pcall('ZREM', alive, unpack(gone_from_queue, from, last)) -- may be empty already
  redis.pcall('HDEL', needs, unpack(gone_from_queue, from, last))
end

for _, hint in ipairs(hints) do
  if hint.process ~= process then
    redis.pcall(verb, channel .. ':' .. hint.process, hint.permits) -- a hint must not fail the call
  end
end

local reply = {removed, stored and 1 or 0, free, all_granted and declared == 0 and 0 or held, -1}
if not all_granted and next_end ~= forever then
  reply[5] = math.max(math.ceil(next_end - now), 0)
end
if expiry > 0 then
  reply[5] = reply[5] < 0 and expiry or math.min(reply[5], expiry)
end
for _, granted in ipairs(tokens) do
  reply[#reply + 1] = granted
end
return reply

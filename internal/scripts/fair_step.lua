--[[
Serves a fair semaphore: takes back what leaves, grants the requests that fit and enters those that wait, and assigns free permits in
order of arrival. A request is known by its first id, so that a second execution finds what the first did.

What is assigned to a request that waited stands in leases until its process claims it, by a call with the same ids, and no longer than
the process counts as alive: then it is taken back, and the next in line gets it.

KEYS     1 permits (string: free permits)   2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 queue (zset: request -> place)   4 alive (zset: request -> the instant, ms, until which its process counts as alive without
         asking again)   5 needs (hash: request -> its process, 32 bytes,
         and the ids of its permits, 16 bytes each)   6 fence (string: the last token)
ARGV     1 PUBLISH or SPUBLISH   2 channel prefix   3 for how long a process counts as alive, ms   4 process, 32 bytes
         5 how long the fence is kept, ms   6 number of ids that leave   their ids
         and per request   lease, ms   1 if it waits else 0   number of permits   their ids
Returns  {{per id that leaves 1 if it was held else 0}, 1 if the permits were ever set else 0, free, held, ms to the next end of a
         lease or -1, then per request its token or 0}; held and the next end are told only if a request has no token
Errors   WRONGKIND the key, or the fence, holds no number
]]
local permits, leases, queue, alive, needs, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local verb, channel, alive_ms, process, fence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local first_leaving, leaving = 7, tonumber(ARGV[6])
-- include: forever
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = math.floor(clock / 1000)

-- include: read_fence
-- include: read_permits
local places = redis.call('ZCARD', queue)
-- include: count_over

-- What leaves is held, or stands in the queue, or neither.
local removed, held_leaving, line = {}, {}, places
for j = 1, leaving do
  local id = ARGV[first_leaving + j - 1]
  local ends = redis.call('ZSCORE', leases, id)
  removed[j] = ends and tonumber(ends) > now and 1 or 0
  if removed[j] == 1 then
    held_leaving[#held_leaving + 1] = id
  elseif places > 0 and redis.call('ZSCORE', queue, id) then
    line = line - 1
  end
end
if stored then
  free = free + over + #held_leaving
end

-- What becomes of each request: it is held already, granted at once because the line is empty, entered in the line, or refused.
local requests, entering, i = {}, 0, first_leaving + leaving
while ARGV[i] do
  local n, first = tonumber(ARGV[i + 2]), i + 3
  local request = {id = ARGV[first], lease = ARGV[i], n = n, first = first, last = first + n - 1}
  local ends = tonumber(redis.call('ZSCORE', leases, request.id) or 0)
  if ends > now then
    request.ends = ends
  elseif stored and line == 0 and entering == 0 and n <= free then
    request.granted = true
    free = free - n
  elseif stored and ARGV[i + 1] == '1' then
    request.enters = true
    entering = entering + 1
  end
  requests[#requests + 1] = request
  i = first + n
end

-- Calls that change nothing prove that what follows the first write is not refused. What gives permits back must also pass where memory
-- is short: after a ZREM it does.
local waiting = places > 0 or entering > 0
if leaving > 0 then
  redis.call('ZREM', leases, '')
end
if waiting then
  redis.call('ZSCORE', alive, '')
  redis.call('ZREVRANGE', queue, 0, 0)
  redis.call('ZRANGE', queue, 0, 0)
  redis.call('HGET', needs, '')
end
local held, next_end = 0, forever
if waiting or #requests > 0 then
  held = redis.call('ZCARD', leases)
  next_end = tonumber(redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or forever)
  redis.call('ZADD', leases, 'XX', 0, '')
end
if waiting then
  redis.call('ZREM', queue, '')
  redis.call('ZREM', alive, '')
  redis.call('HDEL', needs, '')
end
if entering > 0 then
  redis.call('HSET', needs, '', '')
  redis.call('HDEL', needs, '')
end
if stored then
  redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
end

if over > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
for from = 1, #held_leaving, 1000 do
  redis.call('ZREM', leases, unpack(held_leaving, from, math.min(from + 999, #held_leaving)))
end
held = held - over - #held_leaving

local function remove_place(request)
  redis.call('ZREM', queue, request)
  redis.call('ZREM', alive, request)
  redis.call('HDEL', needs, request)
end

-- enter gives a request a place, or keeps the one it has.
local function enter(request)
  redis.call('HSET', needs, request.id, process .. table.concat(ARGV, '', request.first, request.last))
  local last_place = redis.call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2] or 0
  redis.call('ZADD', queue, 'NX', last_place + 1, request.id)
  redis.call('ZADD', alive, string.format('%.0f', now + alive_ms), request.id)
end

-- assign gives free permits to those that came first, and passes over those that are not alive. Half a millisecond marks what was
-- assigned and not claimed yet. It waits no longer for a claim than a process counts as alive.
local assigned = {}
local function assign()
  while true do
    local request = redis.call('ZRANGE', queue, 0, 0)[1]
    if not request then
      return
    end
    local need = redis.call('HGET', needs, request)
    local lives_until = math.min(tonumber(redis.call('ZSCORE', alive, request) or 0), now + alive_ms)
    local n = lives_until > now and need and #need / 16 - 2 or 0
    if n > free then
      return
    end
    free, held = free - n, held + n
    for j = 1, n do
      redis.call('ZADD', leases, string.format('%.0f', lives_until) .. '.5', string.sub(need, 17 + 16 * j, 32 + 16 * j))
    end
    if n > 0 then
      next_end = math.min(next_end, lives_until)
      assigned[request] = true
    end
    remove_place(request)
    local owner = need and string.sub(need, 1, 32)
    if n > 0 and owner ~= process then
      redis.pcall(verb, channel .. ':' .. owner, n) -- a hint must not fail the call
    end
  end
end

if waiting then
  for j = 1, leaving do
    remove_place(ARGV[first_leaving + j - 1])
  end
  for _, request in ipairs(requests) do
    if request.enters then
      enter(request)
    end
  end
  assign()
  if stored then
    redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
  end
end

-- Leases of what was granted, or assigned and is claimed now. One that was claimed before is not made shorter: this may be a late copy.
local tokens, token, complete = {}, math.max(last_token, clock - 1), true
for k, request in ipairs(requests) do
  tokens[k] = 0
  if request.ends or request.granted or assigned[request.id] then
    token = token + 1
    tokens[k] = token
    local ends = string.format('%.0f', now + request.lease)
    for j = request.first, request.last do
      if request.ends and request.ends % 1 == 0 then
        redis.call('ZADD', leases, 'XX', 'GT', ends, ARGV[j])
      else
        redis.call('ZADD', leases, ends, ARGV[j])
      end
    end
    if request.granted then
      held, next_end = held + request.n, math.min(next_end, ends)
    end
  else
    complete = false
  end
end
if token > math.max(last_token, clock - 1) then
  redis.call('SET', fence, string.format('%.0f', token), 'PX', fence_ms)
end

local reply = {removed, stored and 1 or 0, free, complete and 0 or held, -1}
if not complete and next_end ~= forever then
  reply[5] = math.max(math.ceil(next_end - now), 0)
end
for _, granted in ipairs(tokens) do
  reply[#reply + 1] = granted
end
return reply

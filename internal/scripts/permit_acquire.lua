--[[
Takes back the permits whose lease is over, and grants the longest prefix of requests that fits. The ids are the caller's, so that a
second execution finds what the first granted.

KEYS     1 permits (string: free permits)   2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 fence (string: the last token)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 how long the fence is kept, ms
         and per request   lease, ms   number of permits   their ids, 16 bytes each
Returns  {1 if the permits were ever set else 0, free, held, ms to the next end of a lease or -1, then per request its token or 0};
         held and the next end are told only if a request was not granted
Errors   WRONGKIND the key, or the fence, holds no number
]]
local permits, leases, fence = KEYS[1], KEYS[2], KEYS[3]
local verb, channel, fence_ms = ARGV[1], ARGV[2], ARGV[3]
local first_request = 4
-- include: forever
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = math.floor(clock / 1000)

-- include: read_fence
-- include: read_permits
local expiry = redis.call('PTTL', permits)
-- include: count_over
if stored then
  free = free + over
end

-- One request that does not fit has those behind it refused too. entries are what goes into leases.
local reply, entries = {stored and 1 or 0, free, 0, -1}, {}
local token, taken, refuse_rest, complete = math.max(last_token, clock - 1), 0, not stored, true
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
      entries[#entries + 1] = string.format('%.0f', now + lease)
      entries[#entries + 1] = ARGV[j]
    end
    token = token + 1
  else
    complete = false
  end
  reply[#reply + 1] = granted and token or 0
  i = first + n
end
reply[2] = free - taken
if not complete then
  reply[3] = redis.call('ZCARD', leases) - over + taken
  local next_end = tonumber(redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or forever)
  for j = 1, #entries, 2 do
    next_end = math.min(next_end, entries[j])
  end
  if next_end ~= forever then
    reply[4] = math.ceil(next_end - now)
  end
end

-- SET comes first, and undoes itself if ZADD is refused. Where both ends of leases and new ones change, ZADD is proven before.
if over > 0 and taken > 0 then
  redis.call('ZADD', leases, 'XX', 0, '')
end
if #entries > 0 or stored and over > 0 then
  redis.call('SET', permits, string.format('%.0f', free - taken), 'KEEPTTL')
end
if over > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
end
for from = 1, #entries, 2000 do
  -- GT: a late copy must not shorten what the holder was promised since.
  local added = redis.pcall('ZADD', leases, 'GT', unpack(entries, from, math.min(from + 1999, #entries)))
  if type(added) == 'table' then
    redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
    return added
  end
end
if #entries > 0 then
  redis.call('SET', fence, string.format('%.0f', token), 'PX', fence_ms)
end
if stored and over > 0 and free > taken then
  redis.pcall(verb, channel, string.format('%.0f', free - taken)) -- a hint must not fail the call
end
if expiry > 0 then
  redis.pcall('PEXPIRE', leases, expiry) -- as Redisson has it; without, the leases end by themselves
end
return reply

--[[
Takes a fair lock if it is free and the id is first in the queue. Otherwise it adds the id to the queue, or records that the waiter is
alive. A second execution under the same id finds the lock or the place in the queue that the first one took.

KEYS     1 name (hash: id -> 1)   2 queue (list)   3 timeouts (zset)   4 alive (zset): see fair_queue.lua
         5 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   3 1 if it waits in the queue, else 0   4 ms that each place adds to Redisson's timeout
         5 ms for which a waiter counts as alive   6 PUBLISH or SPUBLISH   7 channel prefix
         and with a fence   8 expiry of the fence, ms, or 0 for none
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, 0: none is reserved};
         {0, ms} otherwise: ms to the holder's expiry, or to the next useful query if the lock is free, or -1
Errors   WRONGKIND the key holds a read/write lock, or the fence no number
]]
local name, queue, timeouts, alive, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, lease, waits, wait_ms, alive_ms = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5])
local verb, channel, fence_ms, wanted = ARGV[6], ARGV[7], ARGV[8], 0
-- include: clock
-- include: fair_queue
-- include: check_lease

local found = redis.call('HMGET', name, 'mode', id)
local left = redis.call('PTTL', name)
if found[1] then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
local known, free = found[2], left == -2
local now = clock_millis()
local token, reserved
if fence then
  -- include: next_token
end

local dead, head, counts = {in_timeouts = 0, in_alive = 0}, false, 0
local has_line = redis.call('LINDEX', queue, 0)
if has_line then
  dead, head, counts = find_dead(now, id)
end
local takes = known or free and (not head or head == id)
local enters = waits and not takes

-- The position of the id without the dead waiters: its rank, the places before it, the latest timeout, and whether the queue has
-- Redisson's waiters.
local rank, before, latest, with_redisson
if enters then
  local places = redis.call('ZCARD', timeouts) - dead.in_timeouts
  with_redisson = places > redis.call('ZCARD', alive) - dead.in_alive
  rank = redis.call('ZRANK', timeouts, id)
  before = rank and math.max(rank - dead.in_timeouts, 0) or places
  local last = redis.call('ZRANGE', timeouts, -1 - #dead, -1, 'WITHSCORES')
  for i = 1, #last, 2 do
    latest = not dead[last[i]] and tonumber(last[i + 1]) or latest
  end
  latest = latest or 0
end

-- From here on, all writes succeed or the first one is refused: calls that change nothing prove the later ones.
if has_line then
  redis.call('ZREM', timeouts, '')
  redis.call('ZREM', alive, '')
  redis.call('LPOP', queue, 0)
end

-- keep_place adds the id to the end of the queue, or records that it is alive.
local function keep_place()
  local timeout = now + math.max(left, 0) + wait_ms * (before + 1)
  if not rank then
    timeout = math.max(timeout, latest + wait_ms)
  end
  local lives = alive_ms
  if with_redisson then
    -- Redisson's waiters set their timeout only once, and take it that waiters with later timeouts are behind them.
    timeout = math.max(timeout, tonumber(redis.call('ZSCORE', timeouts, id) or 0))
    lives = math.max(timeout, latest) - now
  end
  redis.call('ZADD', timeouts, 'XX', 0, '')
  redis.call('ZADD', alive, 'XX', 0, '')
  redis.call('PEXPIRE', queue, lives)
  if not rank then
    redis.call('RPUSH', queue, id)
  end
  redis.call('ZADD', timeouts, timeout, id)
  redis.call('ZADD', alive, now + alive_ms, id)
  for i = 2, 4 do
    redis.call('PEXPIRE', KEYS[i], lives)
  end
end

if takes then
  if free then
    redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
    redis.call('HSET', name, id, 1)
  end
  if free or left < lease_ms then -- a late copy must not shorten a later, longer lease
    redis.call('PEXPIRE', name, lease)
  end
  if fence then
    -- include: write_token
  end
  if head == id then
    shorten_timeouts(0, wait_ms)
    dead[#dead + 1] = id
  end
  remove_first(dead)
  return {1, lease_ms, token, reserved}
end
if enters then
  keep_place()
end
remove_first(dead)
if free and #dead > 0 then
  redis.pcall(verb, channel .. ':' .. head, '0') -- a hint must not fail the call
end
if not free then
  return {0, left}
end
if not enters then
  return {0, counts - now}
end
-- The first waiter takes the free lock about now. The others query soon, to learn when the lock may be theirs.
return {0, math.min(counts - now, 100 * (before + 1))}

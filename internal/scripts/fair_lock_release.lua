--[[
Frees a fair lock that the id holds, or by force the lock of any id. It removes the id from the queue, and wakes the first waiter.
By force, it also notifies the holder's client.

KEYS     1 name (hash: id -> 1)   2 queue (list)   3 timeouts (zset)   4 alive (zset): see fair_queue.lua
ARGV     1 id   2 ms that each place adds to Redisson's timeout   3 PUBLISH or SPUBLISH   4 channel prefix
         and to free the lock by force   5 prefix of the channels of clients   6 the part that is marked, if any: see unmarked_part
Returns  1 released, 0 it was not held; by force {1, id ..} freed, and the ids whose clients the caller has to notify, {0} it was free,
         {2, id} the part to mark first
Errors   WRONGKIND the key holds a read/write lock, by force only
]]
local name, queue, timeouts, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, wait_ms, verb, channel, clients = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local force = clients ~= nil
-- include: clock
-- include: fair_queue
-- include: notify_holders
-- include: unmarked_part
local fields = redis.call('HLEN', name)
local held = redis.call('HEXISTS', name, force and 'mode' or id) == 1
local holders
if force then
  if held then
    return redis.error_reply('WRONGKIND the key holds a read/write lock')
  end
  held = fields > 0
  holders = redis.call('HGETALL', name)
  local part = unmarked_part(holders, ARGV[6])
  if part then
    return {2, part}
  end
end
local timeout = redis.call('ZSCORE', timeouts, id)
local first = redis.call('LINDEX', queue, 0)
local free = fields == 0 or held and (force or fields == 1)

-- The waiters then. Work for them must not fail the call.
local looked, dead, head = false, {}, false
if first then
  looked, dead, head = pcall(function()
    local places, next_place = find_dead(clock_millis(), nil, timeout and id)
    redis.call('ZREM', timeouts, '') -- proves, as the next, that no place is removed in part
    redis.call('LPOP', queue, 0)
    return places, next_place
  end)
end

if timeout then
  redis.call('ZREM', alive, '') -- proves that what follows the first write is not refused
  if first == id then
    redis.call('LPOP', queue, 1)
  else
    redis.call('LREM', queue, -1, id) -- from the end, where most waiters that give up are
  end
  shorten_timeouts(timeout, wait_ms)
  redis.call('ZREM', alive, id)
  redis.call('ZREM', timeouts, id)
end
if held and force then
  redis.call('DEL', name)
elseif held then
  redis.call('HDEL', name, id)
end
local released = held and 1 or 0
if force then
  released = held and notify_holders(holders) or {0}
end
if looked then
  pcall(remove_first, dead) -- work for waiters must not fail a call that is done
end
if looked and head and free and (held or head ~= first) then
  redis.pcall(verb, channel .. ':' .. head, '0') -- a hint must not fail the call
end
return released

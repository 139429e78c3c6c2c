--[[
Frees a fair lock that the id holds, or that any id holds, takes the id out of the line, and wakes the first that waits then.

KEYS     1 name (hash: id -> 1)   2 queue (list)   3 timeouts (zset)   4 alive (zset): see line.lua
ARGV     1 id   2 what each place adds to Redisson's timeout, ms   3 PUBLISH or SPUBLISH   4 channel prefix
         5 force, to free the lock whichever id holds it
Returns  1 released, 0 it was not held
Errors   WRONGKIND the key holds a read/write lock, by force only
]]
local name, queue, timeouts, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, wait_ms, verb, channel, force = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
-- include: clock
-- include: line
local fields = redis.call('HLEN', name)
local held = redis.call('HEXISTS', name, force and 'mode' or id) == 1
if force then
  if held then
    return redis.error_reply('WRONGKIND the key holds a read/write lock')
  end
  held = fields > 0
end
local timeout = redis.call('ZSCORE', timeouts, id)
local first = redis.call('LINDEX', queue, 0)

if timeout then
  redis.call('ZREM', alive, '') -- proves that what follows the first write is not refused
  if first == id then
    redis.call('LPOP', queue, 1)
  else
    redis.call('LREM', queue, -1, id) -- from the end: those that give up soon stand there
  end
  redis.call('ZREM', alive, id)
  redis.call('ZREM', timeouts, id)
end
if held and force then
  redis.call('DEL', name)
elseif held then
  redis.call('HDEL', name, id)
end
local released = held and 1 or 0

-- The rest is for those that wait. It must not fail a call whose work is done.
if not first then
  return released
end
local function wake()
  if timeout then
    shorten_timeouts(timeout, wait_ms)
  end
  redis.call('ZREM', timeouts, '')
  redis.call('LPOP', queue, 0)
  return drop_places(clock_millis(), nil)
end
local woken, head = pcall(wake)
local free = fields == 0 or held and (force or fields == 1)
if woken and head and free and (held or head ~= first) then
  redis.pcall(verb, channel .. ':' .. head, '0') -- a hint must not fail the call
end
return released

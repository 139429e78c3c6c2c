--[[
Takes a read/write lock for a reader, unless a writer has it. A second execution under the same id grants it again.

KEYS     1 name (hash: mode -> read or write, id -> 1, or next -> the waiter for whom the lock is kept)
         2 the reader's timeout (string that lives as long as its lease)
ARGV     1 id   2 lease, ms
         and to wait in the line   3 waiter, 'r'   4 ms for which it has waited   5 ms for which it counts as alive   6 PUBLISH or SPUBLISH
         7 channel
Returns  {1, lease} if the id holds the lock, {0, ms to the writer's expiry or -1} if a writer does, in the line
         {0, ms, place, unheard}: see enter_line and unheard_holder
Errors   WRONGKIND the key holds another kind of lock
]]
local name, timeout = KEYS[1], KEYS[2]
local id, lease = ARGV[1], ARGV[2]
local waiter, waited, alive_ms, verb, channel = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
-- include: check_lease
-- include: line

local found = redis.call('HMGET', name, 'mode', id, 'next')
local mode, known, kept = found[1], found[2], found[3]
local left = redis.call('PTTL', name)
if mode == 'write' then
  -- include: enter_line
  -- include: unheard_holder
  return {0, left, place, unheard}
end
if not mode and left ~= -2 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end

-- The hash lasts as long as the longest lease of a reader. A second execution sets the same values again, but never shortens a later,
-- longer lease. A step that is refused undoes the earlier steps by commands that were not refused.
if kept then
  redis.call('HDEL', name, '') -- changes nothing, and proves that no reader is counted besides
end
local extends = left ~= -1 and left < lease_ms
if not known or redis.call('PTTL', timeout) < lease_ms then
  redis.call('SET', timeout, 1, 'PX', lease)
end
if extends then
  local set = redis.pcall('PEXPIRE', name, lease) -- of an absent key: changes nothing, and proves that it can be set below
  if type(set) == 'table' then
    if not known then
      redis.call('SET', timeout, 1, 'PX', 1)
    end
    return set
  end
end
if not known then
  local added = redis.pcall('HSET', name, 'mode', 'read', id, 1)
  if type(added) == 'table' then
    redis.call('SET', timeout, 1, 'PX', 1)
    if extends and left > 0 then
      redis.call('PEXPIRE', name, left)
    end
    return added
  end
end
if left == -2 then
  redis.call('PEXPIRE', name, lease)
end
if kept then
  redis.call('HDEL', name, 'next')
end
local first_of_all = kept
if waiter and redis.pcall('ZREM', line, waiter) == 1 then -- the other readers that wait may have it as well
  redis.pcall(verb, channel .. ':r', '0 r')
  first_of_all = true
end
if waiter and first_of_all then
  local ready_in = lease
  -- include: tell_first
end
return {1, lease_ms}

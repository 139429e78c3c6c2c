--[[
Makes the writer of a read/write lock a reader, with no instant between the two, and wakes waiting readers.

KEYS     1 name (hash: mode -> read or write, id -> 1)   2 the reader's timeout (string that lives as long as its lease)
ARGV     1 writer's id   2 reader's id   3 lease, ms   4 PUBLISH or SPUBLISH   5 channel
Returns  {1, lease} if the reader holds the lock, {0, ms to the holders' expiry or -1} if neither id does
]]
local name, timeout = KEYS[1], KEYS[2]
local writer, reader, lease, verb, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- include: check_lease

local found = redis.call('HMGET', name, 'mode', writer, reader)
local mode, writes, reads = found[1], found[2], found[3]
local left = redis.call('PTTL', name)
if not writes and not reads then
  return {0, left}
end

if writes then
  -- Calls that change nothing, or only values that are set below anyway, prove that Redis refuses no later command.
  redis.call('HSET', name, 'mode', mode)
  redis.call('PEXPIRE', name, math.max(left, lease_ms))
  redis.call('HDEL', name, '')
  redis.call('SET', timeout, 1, 'PX', lease)
  redis.call('HDEL', name, writer)
  redis.call('HSET', name, 'mode', 'read', reader, 1)
  redis.call('PEXPIRE', name, lease)
  -- include: line
  -- include: admit_readers
  return {1, lease_ms}
end
-- An earlier execution with a lost reply has done it. The holder counts its lease from before the last copy of the call.
if redis.call('PTTL', timeout) < lease_ms then
  redis.call('SET', timeout, 1, 'PX', lease)
end
if left < lease_ms then
  redis.call('PEXPIRE', name, lease)
end
return {1, lease_ms}

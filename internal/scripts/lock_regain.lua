--[[
Takes a plain lock as a missing part of a quorum's hold, if it is free and this part of the hold was not freed by force. A second
execution under the same id finds the lock taken by the first, and grants it again.

KEYS     1 name (hash: id -> 1)   2 forced (string: exists if the part was freed by force)
ARGV     1 id   2 lease, ms
Returns  {1, lease} the id holds it; {0, ms to the holder's expiry or -1} another does; {2, 0} the part was freed by force
Errors   WRONGKIND the key holds a read/write lock
]]
local name, forced = KEYS[1], KEYS[2]
local id, lease = ARGV[1], ARGV[2]
-- include: check_lease

if redis.call('EXISTS', forced) == 1 then
  return {2, 0}
end
local free = redis.call('HLEN', name) == 0
if not free then
  local found = redis.call('HMGET', name, 'mode', id)
  if found[1] then
    return redis.error_reply('WRONGKIND the key holds a read/write lock')
  end
  if not found[2] then
    return {0, redis.call('PTTL', name)}
  end
end
if free then
  redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
  redis.call('HSET', name, id, 0)
end
if free or redis.call('PTTL', name) < lease_ms then
  redis.call('PEXPIRE', name, lease)
end
return {1, lease_ms}

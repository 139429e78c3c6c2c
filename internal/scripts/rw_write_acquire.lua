--[[
Takes a read/write lock for a writer if it is free. A second execution under the same id grants it again. Writers are renewed as
plain locks are.

KEYS     1 name (hash: mode -> read or write, id -> 1)   2 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   and with a fence   3 expiry of the fence, ms, or 0 for none   4 tokens wanted for hand-overs
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, tokens reserved after it};
         {0, ms to the holders' expiry or -1} if others do
Errors   WRONGKIND the key holds another kind of lock, or the fence no number
]]
local name, fence = KEYS[1], KEYS[2]
local id, lease, fence_ms, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- include: check_lease

local found = redis.call('HMGET', name, 'mode', id)
local mode, known = found[1], found[2]
local left = redis.call('PTTL', name)
if not mode and left ~= -2 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if mode and not known then
  return {0, left}
end
local free = not mode -- else taken by an earlier execution of this same call, whose reply was lost

local token, reserved
if fence then
  -- include: next_token
end

if free then
  redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
  redis.call('HSET', name, 'mode', 'write', id, 1)
end
if left < lease_ms then -- a late copy must not shorten a later, longer lease
  redis.call('PEXPIRE', name, lease)
end
if fence then
  -- include: write_token
end
return {1, lease_ms, token, reserved}

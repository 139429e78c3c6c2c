--[[
Takes a read/write lock for a writer if it is free. A second execution under the same id grants it again. Writers are renewed as
plain locks are.

KEYS     1 name (hash: mode -> read or write, id -> 0, or next -> the waiter for whom the lock is kept)
         2 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   and with a fence   3 expiry of the fence, ms, or 0 for none   4 tokens wanted for hand-overs
         and to wait in the line   5 waiter   6 ms for which it has waited   7 ms for which it counts as alive
         8 PUBLISH or SPUBLISH   9 channel   (3 and 4 are empty if they are not wanted)
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, tokens reserved after it};
         {0, ms to the holders' expiry or -1} if others do, in the line {0, ms, place, unheard}: see enter_line and unheard_holder
Errors   WRONGKIND the key holds another kind of lock, or the fence no number
]]
local name, fence = KEYS[1], KEYS[2]
local id, lease, fence_ms, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local waiter, waited, alive_ms, verb, channel = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
-- include: check_lease
-- include: line

local found = redis.call('HMGET', name, 'mode', id, 'next')
local mode, known, kept = found[1], found[2], waiter and found[3] == waiter
local left = redis.call('PTTL', name)
if not mode and left ~= -2 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if mode and not known and not kept then
  -- include: enter_line
  -- include: unheard_holder
  return {0, left, place, unheard}
end
local free = not mode or kept -- else taken by an earlier execution of this same call, whose reply was lost

local token, reserved
if fence then
  -- include: next_token
end

if kept then
  redis.call('HDEL', name, '') -- changes nothing, and proves that the waiter will not be kept beside the id
  redis.call('PEXPIRE', name, lease)
  local set = redis.pcall('HSET', name, 'mode', 'write', id, 0)
  if type(set) == 'table' then
    redis.call('PEXPIRE', name, 1)
    return set
  end
  redis.call('HDEL', name, 'next')
elseif free then
  redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
  redis.call('HSET', name, 'mode', 'write', id, 0)
end
if left < lease_ms then -- a late copy must not shorten a later, longer lease
  redis.call('PEXPIRE', name, lease)
end
if fence then
  -- include: write_token
end
if waiter then
  redis.pcall('ZREM', line, waiter)
  local ready_in = lease
  -- include: tell_first
end
return {1, lease_ms, token, reserved}

--[[
Takes a plain lock if it is free. A second execution under the same id finds the lock taken by the first, and grants it again.

KEYS     1 name (hash: id -> 1, or with a minimum hold when that ends, ms)
         2 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   and with a fence   3 expiry of the fence, ms, or 0 for none   4 tokens wanted for hand-overs
         and with a minimum hold   5 the minimum, ms: see lock_keep
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, tokens reserved after it};
         {0, ms to the holder's expiry or -1} if another does
Errors   WRONGKIND the key holds a read/write lock, or the fence no number
]]
-- This script and lock_release run most often. So they have no local functions, which Lua makes in each run, and do not convert
-- arguments: Lua needs as long to write a number as Redis needs for a command.
local name, fence = KEYS[1], KEYS[2]
local id, lease, fence_ms, wanted, min_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- include: check_lease

local free = redis.call('HLEN', name) == 0
if not free then
  local found = redis.call('HMGET', name, 'mode', id)
  if found[1] then
    return redis.error_reply('WRONGKIND the key holds a read/write lock')
  end
  if not found[2] then
    return {0, redis.call('PTTL', name)}
  end
  -- Taken by an earlier execution of this same call, whose reply was lost.
end

local token, reserved
if fence then
  -- include: next_token
end

local value = 1
if min_ms then
  local time = redis.call('TIME')
  value = time[1] * 1000 + math.ceil(time[2] / 1000) + min_ms
end
if free then
  redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
  redis.call('HSET', name, id, value)
end
if free or redis.call('PTTL', name) < lease_ms then -- a late copy must not shorten a later, longer lease
  redis.call('PEXPIRE', name, lease)
end
if fence then
  -- include: write_token
end
return {1, lease_ms, token, reserved}

--[[
Takes a plain lock if it is free. A second execution under the same id finds the lock taken by the first, and grants it again.

KEYS     1 name (hash: id -> 0, or with a minimum hold when that ends, ms; or next -> the waiter for whom the lock is kept. Holders of
           Redisson, of fair locks and of versions without a line have a count from 1 on instead of 0)
         2 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   and with a fence   3 expiry of the fence, ms, or 0 for none   4 tokens wanted for hand-overs
         and with a minimum hold   5 the minimum, ms: see lock_keep
         and to wait in the line   6 waiter   7 ms for which it has waited   8 ms for which it counts as alive   9 PUBLISH or SPUBLISH
         10 channel   (3 to 5 are empty if they are not wanted)
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, tokens reserved after it};
         {0, ms to the holder's expiry or -1} if another does, in the line {0, ms, place, unheard}: see enter_line and unheard_holder
Errors   WRONGKIND the key holds a read/write lock, or the fence no number
]]
-- This script and lock_release run most often. So they have no local functions, which Lua makes in each run, and do not convert
-- arguments: Lua needs as long to write a number as Redis needs for a command.
local name, fence = KEYS[1], KEYS[2]
local id, lease, fence_ms, wanted, min_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local waiter, waited, alive_ms, verb, channel = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
-- include: check_lease
-- include: line

local free, kept = redis.call('HLEN', name) == 0, false
if not free then
  local found = redis.call('HMGET', name, 'mode', id, 'next')
  local mode = found[1]
  if mode then
    return redis.error_reply('WRONGKIND the key holds a read/write lock')
  end
  if not found[2] then
    kept = waiter and found[3] == waiter
    if not kept then
      local left = redis.call('PTTL', name)
      -- include: enter_line
      -- include: unheard_holder
      return {0, left, place, unheard}
    end
    free = true
  end
  -- If it is not free, an earlier execution of this same call, whose reply was lost, has taken it.
end

local token, reserved
if fence then
  -- include: next_token
end

local value = '0'
if min_ms and min_ms ~= '' then
  local time = redis.call('TIME')
  value = time[1] * 1000 + math.ceil(time[2] / 1000) + min_ms
end
if kept then
  redis.call('HDEL', name, '') -- changes nothing, and proves that the waiter will not be kept beside the id
  redis.call('PEXPIRE', name, lease)
  local set = redis.pcall('HSET', name, id, value)
  if type(set) == 'table' then
    redis.call('PEXPIRE', name, 1)
    return set
  end
  redis.call('HDEL', name, 'next')
elseif free then
  redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
  redis.call('HSET', name, id, value)
end
if free or redis.call('PTTL', name) < lease_ms then -- a late copy must not shorten a later, longer lease
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

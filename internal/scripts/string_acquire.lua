--[[
Takes a string lock if it is free. A second execution under the same id finds the lock taken by the first, and grants it again.

KEYS     1 name (string: the id of the holder, or 'next ' and the waiter for whom the lock is kept, or what a holder of another library
           has set)
         2 fence (string: the last token), if a fencing token is wanted
ARGV     1 id   2 lease, ms   and with a fence   3 expiry of the fence, ms, or 0 for none   4 tokens wanted for hand-overs
         and to wait in the line   5 waiter   6 ms for which it has waited   7 ms for which it counts as alive
         8 PUBLISH or SPUBLISH   9 channel   (3 and 4 are empty if they are not wanted)
Returns  {1, lease} if the id holds the lock, with a fence {1, lease, token, tokens reserved after it};
         {0, ms to the holder's expiry or -1} if another does, in the line {0, ms, place, 0}: see enter_line;
         {0, ms, place, 2} if a holder of another library does, whose release wakes nobody. place is -1 without a waiter
Errors   WRONGKIND the fence holds no number
]]
local name, fence = KEYS[1], KEYS[2]
local id, lease, fence_ms, wanted = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local waiter, waited, alive_ms, verb, channel = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
-- include: check_lease
-- include: line

local holder = redis.call('GET', name)
local free = not holder or waiter and holder == 'next ' .. waiter
if not free and holder ~= id then
  local left = redis.call('PTTL', name)
  -- include: foreign_holder
  -- include: enter_line
  if foreign then
    if place == 2 then -- no release finds out that the first one is gone, so its guard does; a message for no waiter shows who hears
      local first = redis.pcall('ZRANGE', line, 0, 0)[1]
      if first and redis.pcall(verb, channel .. ':' .. string.match(first, '^[^:]*'), '0 -') == 0 then
        redis.pcall('ZREM', line, first)
        place = 1
      end
    end
    place, unheard = place or -1, 2
  end
  return {0, left, place, unheard}
end
-- If it is not free, an earlier execution of this same call, whose reply was lost, has taken it.

local token, reserved
if fence then
  -- include: next_token
end

if free then
  if fence then
    redis.call('PEXPIRE', name, 50) -- changes nothing of weight: it proves that the lock can be removed if the token is refused
  end
  redis.call('SET', name, id, 'PX', lease)
elseif redis.call('PTTL', name) < lease_ms then -- a late copy must not shorten a later, longer lease
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

--[[
Frees a string lock, whoever holds it, notifies its holder's client if that is one of this library, and wakes waiters.

KEYS     1 name (string: the id of the holder, or what a holder of another library has set)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 prefix of the channels of clients
Returns  {1} or {1, id} freed, and the id whose client the caller has to notify; {0} it was free
]]
local name = KEYS[1]
local verb, channel, clients = ARGV[1], ARGV[2], ARGV[3]
-- include: notify_holders

local holder = redis.call('GET', name)
if not holder then
  return {0}
end
-- include: foreign_holder
if not foreign and own ~= holder then -- kept for a waiter
  return {0}
end
redis.call('DEL', name)
local reply = notify_holders(foreign and {} or {holder, ''})
local ready_in, followers, nobody = 0, 0, false
-- include: line
-- include: wake_first
-- include: keep_in_string
return reply

--[[
Frees a read/write lock of all its readers or of its writer, notifies their clients and wakes all waiters.

KEYS     1 name (hash: mode -> read or write, id -> 1)
ARGV     1 read or write   2 PUBLISH or SPUBLISH   3 channel   4 prefix of the channels of clients
Returns  {1, id ..} freed, and the ids whose clients the caller has to notify; {0} it was not held that way
Errors   WRONGKIND the key holds another kind of lock
]]
local name = KEYS[1]
local side, verb, channel, clients = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- include: notify_holders

local mode = redis.call('HGET', name, 'mode')
if not mode and redis.call('EXISTS', name) == 1 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if mode ~= side or redis.call('HEXISTS', name, 'next') == 1 then -- kept for a waiter: nobody holds it
  return {0}
end
local fields = redis.call('HGETALL', name)
redis.call('DEL', name)
local reply = notify_holders(fields)
local ready_in, read_write, followers, nobody = 0, true, side == 'read' and 1 or 0, false
-- include: line
-- include: wake_first
-- include: keep_in_hash
return reply

--[[
Frees a plain lock, whichever id holds it, notifies its holder's client and wakes waiters.

KEYS     1 name (hash: id -> 1)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 prefix of the channels of clients
Returns  {1, id ..} freed, and the ids whose clients the caller has to notify; {0} it was free
Errors   WRONGKIND the key holds a read/write lock
]]
local name = KEYS[1]
local verb, channel, clients = ARGV[1], ARGV[2], ARGV[3]
-- include: notify_holders

local fields = redis.call('HGETALL', name)
if #fields == 0 then
  return {0}
end
if redis.call('HEXISTS', name, 'mode') == 1 then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
redis.call('DEL', name)
local reply = notify_holders(fields)
redis.pcall(verb, channel, '0') -- a hint must not fail the call
return reply

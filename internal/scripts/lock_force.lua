--[[
Frees a plain lock, whichever id holds it, notifies its holder's client and wakes waiters.

KEYS     1 name (hash: id -> 1)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 prefix of the channels of clients   4 the part that is marked, if any: see unmarked_part
Returns  {1, id ..} freed, and the ids whose clients the caller has to notify; {0} it was free; {2, id} the part to mark first
Errors   WRONGKIND the key holds a read/write lock
]]
local name = KEYS[1]
local verb, channel, clients, marked = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- include: notify_holders
-- include: unmarked_part

local fields = redis.call('HGETALL', name)
if #fields == 0 or fields[1] == 'next' then -- free, or kept for a waiter
  return {0}
end
if redis.call('HEXISTS', name, 'mode') == 1 then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
local part = unmarked_part(fields, marked)
if part then
  return {2, part}
end
redis.call('DEL', name)
local reply = notify_holders(fields)
local ready_in, read_write, followers, nobody = 0, false, 0, false
-- include: line
-- include: wake_first
-- include: keep_in_hash
return reply

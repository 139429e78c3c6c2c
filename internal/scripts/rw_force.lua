--[[
Frees a read/write lock of all its readers or of its writer, and wakes all waiters.

KEYS     1 name (hash: mode -> read or write, id -> 1)
ARGV     1 read or write   2 PUBLISH or SPUBLISH   3 channel
Returns  1 freed, 0 it was not held that way
Errors   WRONGKIND the key holds another kind of lock
]]
local name = KEYS[1]
local side, verb, channel = ARGV[1], ARGV[2], ARGV[3]

local mode = redis.call('HGET', name, 'mode')
if not mode and redis.call('EXISTS', name) == 1 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if mode ~= side then
  return 0
end
redis.call('DEL', name)
redis.pcall(verb, channel, '1') -- a hint must not fail the call
return 1

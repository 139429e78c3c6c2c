--[[
Frees a plain lock, whichever id holds it, and wakes waiters.

KEYS     1 name (hash: id -> 1)
ARGV     1 PUBLISH or SPUBLISH   2 channel
Returns  1 freed, 0 it was free
Errors   WRONGKIND the key holds a read/write lock
]]
local name = KEYS[1]
local verb, channel = ARGV[1], ARGV[2]

if redis.call('HLEN', name) == 0 then
  return 0
end
if redis.call('HEXISTS', name, 'mode') == 1 then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
redis.call('DEL', name)
redis.pcall(verb, channel, '0') -- a hint must not fail the call
return 1

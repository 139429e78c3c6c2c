--[[
Takes a waiter out of the line of a plain or read/write lock. If it had been woken, the next one is woken in its place.

KEYS     1 name (hash: next -> the waiter for whom the lock is kept)
ARGV     1 waiter   2 PUBLISH or SPUBLISH   3 channel   4 1 for a read/write lock else 0
Returns  1
]]
local name = KEYS[1]
local waiter, verb, channel, read_write = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
-- include: line
local kept = redis.pcall('HGET', name, 'next') == waiter
local was_first = redis.pcall('ZRANGE', line, 0, 0)[1] == waiter
local ready_in = redis.call('PTTL', name)
if kept then
  redis.call('DEL', name)
end
redis.pcall('ZREM', line, waiter)
if kept or ready_in == -2 then
  ready_in = 0
  local followers, nobody = 0, false
  -- include: wake_first
  -- include: keep_in_hash
elseif was_first then
  -- include: tell_first
end
return 1

--[[
Takes a waiter out of the line of a string lock. If it had been woken, the next one is woken in its place.

KEYS     1 name (string: 'next ' and the waiter for whom the lock is kept, or the holder)
ARGV     1 waiter   2 PUBLISH or SPUBLISH   3 channel
Returns  1
]]
local name = KEYS[1]
local waiter, verb, channel = ARGV[1], ARGV[2], ARGV[3]
-- include: line
local holder = redis.pcall('GET', name)
local kept = holder == 'next ' .. waiter
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
  -- include: keep_in_string
elseif was_first then
  if type(holder) == 'string' then
    -- include: foreign_holder
    ready_in = foreign and 20 or ready_in -- the next one goes on to ask
  end
  -- include: tell_first
end
return 1

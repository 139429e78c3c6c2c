--[[
Takes a waiter out of the line of a semaphore, and gives others what was kept for it.

KEYS     1 permits (string: free permits)
ARGV     1 waiter   2 PUBLISH or SPUBLISH   3 channel
Returns  1
Errors   WRONGKIND the key holds no number
]]
local permits = KEYS[1]
local waiter, verb, channel = ARGV[1], ARGV[2], ARGV[3]
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
-- include: read_with_kept
-- include: check_permits

local was_first = redis.pcall('ZRANGE', line, 0, 0)[1] == waiter
redis.pcall('ZREM', line, waiter)
if type(record) == 'string' then
  local time = redis.pcall('TIME')
  local now_ms = (time[1] or 0) * 1000 + math.floor((time[2] or 0) / 1000)
  local kept = read_kept(record, now_ms)
  if kept[waiter] then
    kept[waiter] = nil
    write_kept(kept_key, kept, now_ms)
  end
end
if free > 0 then
  wake_waiters(verb, channel, free)
elseif was_first then -- the next one is first now, and has to learn when a lease ends
  local first = redis.pcall('ZRANGE', line, 0, 0)[1]
  if first then
    redis.pcall(verb, channel .. ':' .. string.match(first, '^[^:]*'), '0 ' .. first)
  end
end
return 1

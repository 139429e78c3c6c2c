--[[
Deletes a semaphore of any kind, with its waiting requests, and wakes those that wait. A record key per call keeps the
result, so that a repeated call does not delete what was set in between.

KEYS     1 permits (string: free permits)   2 record key of the call (string)
         3.. the other keys of the semaphore
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 expiry of the record key, ms
Returns  1 if the permits were set else 0
Errors   WRONGKIND the key holds no number
]]
local permits, record_key = KEYS[1], KEYS[2]
local verb, channel, record_key_ms = ARGV[1], ARGV[2], ARGV[3]

-- include: permit_line
local record = redis.call('GET', record_key)
if record then
  return tonumber(record) -- this call was executed before, and its reply lost
end
-- include: read_permits
-- include: check_permits
local result = stored and 1 or 0

-- The first DEL changes nothing and proves the right to delete. After it, Redis also accepts the SET while memory
-- is short.
redis.call('DEL', record_key)
redis.call('SET', record_key, result, 'PX', record_key_ms)
redis.call('DEL', permits)
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
end
redis.pcall(verb, channel, 0) -- a hint must not fail the call
local line, kept_key = line_keys(channel)
for _, waiter in ipairs(redis.pcall('ZRANGE', line, 0, -1)) do
  redis.pcall(verb, channel .. ':' .. string.match(waiter, '^[^:]*'), '0 ' .. waiter)
end
redis.pcall('DEL', line)
redis.pcall('DEL', kept_key)
return result

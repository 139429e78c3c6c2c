--[[
Deletes a semaphore of any kind, with its waiting requests, and wakes those that wait. A record key per call keeps the
result, so that a repeated call does not delete what was set in between.

KEYS     1 permits (string: free permits)   2 record key of the call (string)
         3.. the other keys of the semaphore; of a fair one, the last holds its needs (hash: see fair_step)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 expiry of the record key, ms
         4 1 if the processes that wait have channels of their own, as those of a fair semaphore, else 0
Returns  1 if the permits were set else 0
Errors   WRONGKIND the key holds no number
]]
local permits, record_key, needs = KEYS[1], KEYS[2], KEYS[#KEYS]
local verb, channel, record_key_ms, is_fair = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

-- include: permit_line
local record = redis.call('GET', record_key)
if record then
  return tonumber(record) -- this call was executed before, and its reply lost
end
-- include: read_permits
-- include: check_permits
local result = stored and 1 or 0

local channels, is_told = {channel}, {}
if is_fair then
  channels = {}
  for _, need in ipairs(redis.call('HVALS', needs)) do
    local process = string.sub(need, 1, 32)
    if not is_told[process] then
      is_told[process] = true
      channels[#channels + 1] = channel .. ':' .. process
    end
  end
end

-- The first DEL changes nothing and proves the right to delete. After it, Redis also accepts the SET while memory
-- is short.
redis.call('DEL', record_key)
redis.call('SET', record_key, result, 'PX', record_key_ms)
redis.call('DEL', permits)
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
end
for _, one in ipairs(channels) do
  redis.pcall(verb, one, 0) -- a hint must not fail the call
end
if not is_fair then
  local line, kept_key = line_keys(channel)
  for _, waiter in ipairs(redis.pcall('ZRANGE', line, 0, -1)) do
    redis.pcall(verb, channel .. ':' .. string.match(waiter, '^[^:]*'), '0 ' .. waiter)
  end
  redis.pcall('DEL', line)
  redis.pcall('DEL', kept_key)
end
return result

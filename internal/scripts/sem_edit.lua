--[[
Changes the permits of a counting semaphore: sets them if they were never set, adds to them or drains them. A
record key per call keeps the result, so that a repeated call changes nothing.

KEYS     1 permits (string: free permits)   2 record key of the call (string)
         3 permits of a fair semaphore of that name
ARGV     1 set, add or drain   2 permits   3 expiry of the semaphore, ms, or 0   4 PUBLISH or SPUBLISH
         5 channel
         6 expiry of the record key, ms
Returns  set: 1 if it set them else 0; add: the free permits after; drain: the free permits before
Errors   WRONGKIND the key holds no number, or the name is that of a fair semaphore
]]
local permits, record_key, fair_permits = KEYS[1], KEYS[2], KEYS[3]
local op, n, expiry_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local verb, channel, record_key_ms = ARGV[4], ARGV[5], ARGV[6]

local record = redis.call('GET', record_key)
if record then
  return tonumber(record) -- this call was executed before, and its reply lost
end
-- include: read_permits
if not stored and op ~= 'drain' and redis.call('EXISTS', fair_permits) == 1 then
  return redis.error_reply('WRONGKIND the name is that of a fair semaphore')
end

-- Only SET writes: if Redis refuses it, nothing has been written.
local result = 0
if op == 'add' then
  result = free + n
  redis.call('SET', permits, string.format('%.0f', result), 'KEEPTTL')
elseif op == 'drain' and stored then
  result = free
  redis.call('SET', permits, 0, 'KEEPTTL')
elseif op == 'set' and not stored then
  result = 1
  if expiry_ms == '0' then
    redis.call('SET', permits, n)
  else
    redis.call('SET', permits, n, 'PX', expiry_ms)
  end
end
redis.call('SET', record_key, string.format('%.0f', result), 'PX', record_key_ms)
if op == 'add' or op == 'set' and result == 1 then
  local free_now = op == 'add' and result or n
  redis.pcall(verb, channel, string.format('%.0f', free_now)) -- a hint must not fail the call
end
return result

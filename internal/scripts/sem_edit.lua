--[[
Changes the permits of a counting semaphore: sets them if they were never set, adds to them or drains them. A
record key per call keeps the result, so that a repeated call changes nothing.

KEYS     1 permits (string: free permits)   2 record key of the call (string)
         3 permits of a fair semaphore of that name   4 origin (string: see sem_acquire)
ARGV     1 set, add or drain   2 permits   3 PUBLISH or SPUBLISH   4 channel
         5 expiry of the record key, ms   6 idle expiry, ms, or 0   7 expiry of the origin without one, ms
Returns  set: 1 if it set them else 0; add: the free permits after; drain: the free permits before
Errors   WRONGKIND the key holds no number, or the name is that of a fair semaphore
]]
local permits, record_key, fair_permits, origin = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local op, n = ARGV[1], tonumber(ARGV[2])
local verb, channel, record_key_ms, idle_ms, origin_ms = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]

-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
local record = redis.call('GET', record_key)
if record then
  return tonumber(record) -- this call was executed before, and its reply lost
end
-- include: read_permits
-- include: check_permits
if not stored and op ~= 'drain' and redis.call('EXISTS', fair_permits) == 1 then
  return redis.error_reply('WRONGKIND the name is that of a fair semaphore')
end

-- include: read_origin
local creates = not stored and op ~= 'drain'
if creates then
  local time = redis.call('TIME')
  total, set_at = nil, math.floor(time[1] * 1000 + time[2] / 1000)
end
if creates and idle_ms ~= '0' then
  total = n
elseif op == 'add' and total then
  total = total + n
end
-- include: write_free

-- Only SET writes: if Redis refuses it, nothing has been written.
local result = 0
if op == 'add' then
  result = free + n
  write_free(result)
elseif op == 'drain' and stored then
  result = free
  write_free(0)
elseif op == 'set' and not stored then
  result = 1
  write_free(n)
elseif op == 'set' and idle_ms ~= '0' then -- a use, which defers the expiry
  write_free(free)
end
if creates and not total then
  redis.call('SET', origin, string.format(' %.0f', set_at), 'PX', origin_ms)
elseif op == 'add' and total and idle_ms == '0' then
  redis.call('SET', origin, string.format('%.0f %.0f', total, set_at), 'KEEPTTL')
end
redis.call('SET', record_key, string.format('%.0f', result), 'PX', record_key_ms)
if op == 'add' or op == 'set' and result == 1 then
  wake_waiters(verb, channel, op == 'add' and result or n)
end
return result

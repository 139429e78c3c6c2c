--[[
Releases a plain lock that was taken with a minimum hold. Until the end of the minimum the key stays, and its field gets another name.
So the id does not hold the lock any more, and no late call with the id, such as a renewal, can prolong the key.

KEYS     1 name (hash: id -> the end of the minimum, ms)
ARGV     1 id   2 PUBLISH or SPUBLISH   3 channel
Returns  1 released, or 3: see yields in wake_first; 0 the id does not hold it
]]
local name = KEYS[1]
local id, verb, channel = ARGV[1], ARGV[2], ARGV[3]
-- include: clock

local min_end = redis.call('HMGET', name, id)[1]
if not min_end then
  return 0
end
local left = (tonumber(min_end) or 0) - clock_millis()
if left > 0 then
  -- The first two calls change nothing. They prove that the last two are not refused half-way, also if memory is short.
  redis.call('HDEL', name, '')
  redis.call('HSET', name, id, min_end)
  local pttl = redis.call('PTTL', name)
  if pttl < 0 or pttl > left then
    redis.call('PEXPIRE', name, left)
  end
  redis.call('HSET', name, id .. ':kept', min_end)
end
redis.call('HDEL', name, id)
local ready_in, read_write, followers, nobody = math.max(0, math.ceil(left)), false, 0, false
-- include: line
-- include: wake_first
-- include: keep_in_hash
return 1 + yields

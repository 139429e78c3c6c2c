--[[
Sets the limit of Redisson's RRateLimiter.

A command that Redis refuses is refused before anything has changed: before the first write, each later one is tried in a
form that changes nothing.

KEYS     1 config (hash)   2 value (string)   3 permits (zset: the log, as rate_log has it)
ARGV     1 when: "try" if no limit is set, "update" if one is, "set" in any case
         2 rate   3 interval in ms   4 type, or nothing for the one that is set, or 0   5 keep-alive in ms, 0 for none
         6 1 if what was granted counts under the new limit; otherwise, and if the type changes, the log begins anew: the log
           in key 3, and by a new epoch in the config the logs of all clients, whose keys are not known here
Returns  1 if it was set, 0 if not
]]
local config_key, value_key, permits_key = KEYS[1], KEYS[2], KEYS[3]
local when, rate, interval_ms, scope, keep_ms, keep_state = unpack(ARGV)
local keeps_alive = keep_ms ~= '0'

local max_count = 4096 -- entries of a log that is counted anew; of a longer one, what leaves is

local had = redis.call('HMGET', config_key, 'rate', 'interval', 'type')
if scope == '' then
  scope = had[3] == '1' and '1' or '0'
end
local complete = had[1] and had[2] and had[3]
if when == 'try' and complete or when == 'update' and not complete then
  return 0
end
local ttl = redis.call('PTTL', config_key) -- -2 if there is no config, -1 if it stays
local field = had[1] and 1 or had[2] and 2 or had[3] and 3
if ttl ~= -2 and not field then
  return redis.error_reply('WRONGTYPE the key holds a hash of something else')
end
local value = redis.call('GET', value_key)
local logged = redis.call('ZCARD', permits_key)

-- include: log_entry

-- sum adds up what entries from one rank to another hold, where one in an unknown form counts as so many.
local function sum(first, last, unknown)
  local all = 0
  for rank = first, last, 1000 do
    for _, member in ipairs(redis.call('ZRANGE', permits_key, rank, math.min(rank + 999, last))) do
      all = all + (size(member) or unknown)
    end
  end
  return all
end

-- gone entries leave the log, from the oldest on, and left becomes the value, which stays as it is if left is nil. What one
-- client counts for itself is not in Redis.
local gone, left = 0, nil
local anew = when ~= 'try' and (keep_state == '0' or had[3] ~= scope)
if anew then
  gone, left = logged, value and rate
elseif when ~= 'try' and scope == '0' then
  local time = redis.call('TIME')
  local edge = string.format('%.3f', (time[1] * 1000000 + time[2]) / 1000 - interval_ms)
  gone = redis.call('ZCOUNT', permits_key, '-inf', edge)
  if logged - gone <= max_count or not tonumber(value or '') or not tonumber(had[1]) then
    left = rate - sum(gone, logged - 1, rate)
  else
    left = value + sum(0, gone - 1, 0) + rate - had[1]
  end
end

local fields = {'rate', rate, 'interval', interval_ms, 'type', scope, 'keepAliveTime', keep_ms}
if scope == '1' and (anew or when == 'try') then
  local time = redis.call('TIME')
  fields[#fields + 1], fields[#fields + 2] = 'epoch', string.format('%.0f', time[1] * 1000000 + time[2])
end

if left and value then
  redis.call('SET', value_key, value, 'KEEPTTL')
elseif left then
  redis.call('SET', value_key, '', 'XX')
end
if gone > 0 then
  redis.call('ZREMRANGEBYRANK', permits_key, 1, 0)
end
if field then
  redis.call('HSET', config_key, ({'rate', 'interval', 'type'})[field], had[field])
end
if keeps_alive then
  redis.call('PEXPIRE', config_key, keep_ms)
else
  redis.call('PERSIST', config_key)
end
redis.call('HSET', config_key, unpack(fields))
if keeps_alive then
  redis.call('PEXPIRE', config_key, keep_ms)
end
if left and keeps_alive then
  redis.call('SET', value_key, string.format('%.0f', left), 'PX', keep_ms)
elseif left then
  redis.call('SET', value_key, string.format('%.0f', left))
end
if left and keeps_alive then
  redis.call('PEXPIRE', permits_key, keep_ms)
elseif left then
  redis.call('PERSIST', permits_key)
end
if gone > 0 then -- last: while a slot of a cluster migrates, Redis refuses a key that the script has emptied
  redis.call('ZREMRANGEBYRANK', permits_key, 0, gone - 1)
end
return 1

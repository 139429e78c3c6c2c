-- permit_state.lua  KEYS[1]=permits KEYS[2]=leases KEYS[3]=channel ARGV: verb, id or nothing  returns {1 set or 0, free, held, ms left or -1 for ever or -2 unknown}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local back = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local value, left = redis.call('GET', KEYS[1]), -2
if value and (tonumber(value) or 0.5) % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
if value and back > 0 then
  value = redis.call('INCRBY', KEYS[1], back)
  if value > 0 then
    redis.call(ARGV[1], KEYS[3], value)
  end
end
local due = ARGV[2] and redis.call('ZSCORE', KEYS[2], ARGV[2])
if due then
  left = tonumber(due) == 922337203685477 and -1 or due - now
end
return {value and 1 or 0, tonumber(value or 0), redis.call('ZCARD', KEYS[2]), left}

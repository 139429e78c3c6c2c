-- permit_edit.lua  KEYS[1]=permits KEYS[2]=leases KEYS[3]=record KEYS[4]=channel ARGV: try|set|add, n, verb, recordMillis  returns 1 done or 0
local done = redis.call('GET', KEYS[3])
if done then
  return tonumber(done) -- an earlier execution of this same call, whose reply was lost
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local back = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local value, result, delta = redis.call('GET', KEYS[1]), 1, tonumber(ARGV[2])
if value and (tonumber(value) or 0.5) % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
if ARGV[1] == 'try' and value then
  result, delta = 0, 0
elseif ARGV[1] == 'set' and value then
  delta = delta - value - back - redis.call('ZCARD', KEYS[2])
elseif not value then
  back = 0
end
if not value or delta + back ~= 0 then
  local free = redis.call('INCRBY', KEYS[1], string.format('%.0f', delta + back))
  if free > 0 then
    redis.call(ARGV[3], KEYS[4], free)
  end
end
redis.call('SET', KEYS[3], result, 'PX', ARGV[4])
return result

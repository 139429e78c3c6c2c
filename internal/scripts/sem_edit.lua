-- sem_edit.lua  KEYS[1]=permits KEYS[2]=record KEYS[3]=channel ARGV: set|add|drain, n, ttlMillis, verb, recordMillis  returns 1 set or 0, the new value, the old value
local done = redis.call('GET', KEYS[2])
if done then
  return tonumber(done) -- an earlier execution of this same call, whose reply was lost
end
local op, value, result = ARGV[1], redis.call('GET', KEYS[1]), 0
if value and (tonumber(value) or 0.5) % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
if op == 'add' then
  result = redis.call('INCRBY', KEYS[1], ARGV[2])
  redis.call(ARGV[4], KEYS[3], result)
elseif op == 'drain' and value then
  result = tonumber(value)
  redis.call('SET', KEYS[1], 0, 'KEEPTTL')
elseif op == 'set' and not value then
  result = 1
  redis.call('SET', KEYS[1], ARGV[2])
  if ARGV[3] ~= '0' then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
  redis.call(ARGV[4], KEYS[3], ARGV[2])
end
redis.call('SET', KEYS[2], result, 'PX', ARGV[5])
return result

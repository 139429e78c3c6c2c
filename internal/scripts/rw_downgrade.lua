-- rw_downgrade.lua  KEYS[1]=hash KEYS[2]=channel KEYS[3]=reader's timeout ARGV: writer's id, reader's id, ttlMillis, PUBLISH|SPUBLISH  returns {1, ttlMillis} held by the reader, else {0, pttl}
local key, reader, ms = KEYS[1], ARGV[2], tonumber(ARGV[3])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local wrote = redis.call('HDEL', key, ARGV[1])
if wrote == 0 and redis.call('HEXISTS', key, reader) == 0 then
  return {0, redis.call('PTTL', key)}
end
if wrote == 1 then -- else an earlier execution, whose reply was lost, has done it
  redis.call('HSET', key, 'mode', 'read', reader, 1)
  redis.call(ARGV[4], KEYS[2], '1')
end
if wrote == 1 or redis.call('PTTL', KEYS[3]) < ms then -- the holder counts from before the last copy of the call
  redis.call('SET', KEYS[3], 1, 'PX', ms)
end
if wrote == 1 or redis.call('PTTL', key) < ms then
  redis.call('PEXPIRE', key, ms)
end
return {1, ms}

-- lock_acquire.lua  KEYS[1]=hash ARGV: id, ttlMillis  returns {1, ttlMillis} if held by id, else {0, pttl}
local key, id, ttl = KEYS[1], ARGV[1], ARGV[2]
local ms = tonumber(ttl)
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  -- PEXPIRE would delete the key just set, or fail and leave it for ever.
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
if redis.call('HLEN', key) == 0 then
  redis.call('HSET', key, id, 1)
  redis.call('PEXPIRE', key, ttl)
  return {1, ms}
end
local found = redis.call('HMGET', key, 'mode', id)
if found[1] then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
if found[2] then
  -- Taken by an earlier execution of this same call, whose reply was lost.
  redis.call('PEXPIRE', key, ttl)
  return {1, ms}
end
return {0, redis.call('PTTL', key)}

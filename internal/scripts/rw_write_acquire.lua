-- rw_write_acquire.lua  KEYS[1]=hash ARGV: id, ttlMillis  returns {1, ttlMillis} if held by id, else {0, pttl}
local key, id, ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local found, left = redis.call('HMGET', key, 'mode', id), redis.call('PTTL', key)
if not found[1] and left ~= -2 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if found[1] and not found[2] then
  return {0, left}
end
-- Free, or taken by an earlier execution of this same call, whose reply was lost.
redis.call('HSET', key, 'mode', 'write', id, 1)
redis.call('PEXPIRE', key, ms)
return {1, ms}

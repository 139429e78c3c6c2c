-- rw_read_acquire.lua  KEYS[1]=hash KEYS[2]=own timeout ARGV: id, ttlMillis  returns {1, ttlMillis} if held by id, else {0, pttl}
local key, id, ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local mode, left = redis.call('HGET', key, 'mode'), redis.call('PTTL', key)
if mode == 'write' then
  return {0, left}
end
if not mode and left ~= -2 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
-- A second execution after a lost reply sets the same again, but never a shorter lease than the holder was promised since.
if redis.call('HSET', key, 'mode', 'read', id, 1) > 0 or redis.call('PTTL', KEYS[2]) < ms then
  redis.call('SET', KEYS[2], 1, 'PX', ms)
end
if left ~= -1 and left < ms then
  -- The hash lives as long as the longest lease of a reader.
  redis.call('PEXPIRE', key, ms)
end
return {1, ms}

-- rw_write_acquire.lua  KEYS[1]=hash KEYS[2]=fence or none ARGV: id, ttlMillis, fenceMillis, spare  returns {1, ttlMillis, token} if held by id, else {0, pttl}
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
local reply = {1, ms}
if KEYS[2] then
  local last, spare = tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(ARGV[4])
  if not last then
    return redis.error_reply('WRONGKIND the fence holds no number')
  end
  if not found[2] or last == 0 then
    local time = redis.call('TIME')
    last = math.max(last + 1, time[1] * 1000000 + time[2]) + spare
    redis.call('SET', KEYS[2], string.format('%.0f', last), 'PX', ARGV[3])
  end
  reply[3] = last - spare
end
redis.call('HSET', key, 'mode', 'write', id, 1)
if left < ms then -- a late copy must not shorten what the holder was promised since
  redis.call('PEXPIRE', key, ms)
end
return reply

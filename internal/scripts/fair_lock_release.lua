-- fair_lock_release.lua  KEYS[1]=hash KEYS[2]=queue KEYS[3]=timeouts KEYS[4]=alive KEYS[5]=channel ARGV: id, waitMillis, PUBLISH|SPUBLISH, force or none  returns 1 released, 0 not held by id, which no longer waits either
local queue, timeouts, alive, id = KEYS[2], KEYS[3], KEYS[4], ARGV[1]
if ARGV[4] and redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
local held, score, time = ARGV[4] and redis.call('DEL', KEYS[1]) or redis.call('HDEL', KEYS[1], id), redis.call('ZSCORE', timeouts, id), redis.call('TIME')
local now, first = time[1] * 1000 + math.floor(time[2] / 1000), redis.call('LINDEX', queue, 0)
if score then
  redis.call('LREM', queue, 1, id); redis.call('ZREM', timeouts, id); redis.call('ZREM', alive, id)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', timeouts, '(' .. score, '+inf')) do
    redis.call('ZINCRBY', timeouts, -ARGV[2], other)
  end
end
local head = redis.call('LINDEX', queue, 0)
while head do
  local due = tonumber(redis.call('ZSCORE', timeouts, head) or 0)
  if math.min(due, tonumber(redis.call('ZSCORE', alive, head) or due)) > now then break end
  -- Not heard of for too long.
  redis.call('LPOP', queue); redis.call('ZREM', timeouts, head); redis.call('ZREM', alive, head)
  head = redis.call('LINDEX', queue, 0)
end
if head and (held == 1 or head ~= first) and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call(ARGV[3], KEYS[5] .. ':' .. head, '0')
end
return held

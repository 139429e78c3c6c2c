-- permit_acquire.lua  KEYS[1]=permits KEYS[2]=leases KEYS[3]=fence KEYS[4]=channel ARGV: verb, fenceMillis, {ttlMillis, n, ids}..  returns {1 set or 0, free, held, nearest expiry in ms or -1, token or 0, ..}
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local value = redis.call('GET', KEYS[1])
local free, taken, full = tonumber(value or 0), 0, not value
if not free or free % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
local token = math.max(tonumber(redis.call('GET', KEYS[3]) or 0) + 1, micros)
local reply, i = {0, 0, 0, -1}, 3
while ARGV[i] do
  local ttl, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  -- An id that is there was granted by an earlier execution, whose reply was lost.
  local own = redis.call('ZSCORE', KEYS[2], ARGV[i + 2])
  full = full or not own and free + gone - taken < n
  if full and not own then
    reply[#reply + 1] = 0
  else
    for j = i + 2, i + 1 + n do
      taken = taken + redis.call('ZADD', KEYS[2], string.format('%.0f', now + ttl), ARGV[j])
    end
    reply[#reply + 1], token = token, token + 1
    redis.call('SET', KEYS[3], string.format('%.0f', token - 1), 'PX', ARGV[2])
  end
  i = i + 2 + n
end
if value and taken ~= gone then
  free = redis.call('INCRBY', KEYS[1], gone - taken)
end
if value and gone > 0 and free > 0 then
  redis.call(ARGV[1], KEYS[4], free)
end
local near, left = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2], redis.call('PTTL', KEYS[1])
if left > 0 then redis.call('PEXPIRE', KEYS[2], left) end
reply[1], reply[2], reply[3] = value and 1 or 0, free, redis.call('ZCARD', KEYS[2])
if near and near ~= '922337203685477' then reply[4] = math.max(near - now, 0) end
return reply

-- rw_read_release.lua  KEYS[1]=hash KEYS[2]=channel KEYS[3]=own timeout KEYS[4]=prefix of timeouts ARGV: id, PUBLISH|SPUBLISH  returns 1 released, 0 not held by id
local key, own = KEYS[1], redis.call('PTTL', KEYS[3])
if redis.call('HDEL', key, ARGV[1]) == 0 then
  return 0
end
redis.call('DEL', KEYS[3])
local left, fields = redis.call('PTTL', key), redis.call('HLEN', key)
if redis.call('HGET', key, 'mode') ~= 'read' or fields > 1 and (left == -1 or own + 100 < left) then
  -- The writer's own, or another reader has the longest lease, which the hash has already. The clock moves on within a script.
  return 1
end
-- Among many, one who reads for as long is soon found and spares looking at all; they may have come together, and go together.
for _, id in ipairs(fields > 16 and redis.call('HRANDFIELD', key, 8) or {}) do
  local lease = redis.call('PTTL', KEYS[4] .. ':' .. id .. ':rwlock_timeout:1')
  if lease > 0 and lease + 100 >= left then
    return 1
  end
end
-- What remains is as long as the longest lease of the others; those whose lease is over have died.
local all, longest = redis.call('HGETALL', key), 0
for i = 1, #all, 2 do
  local lease = 0
  for n = 1, all[i] ~= 'mode' and tonumber(all[i + 1]) or 0 do
    lease = math.max(lease, redis.call('PTTL', KEYS[4] .. ':' .. all[i] .. ':rwlock_timeout:' .. n))
  end
  if lease == 0 and all[i] ~= 'mode' then
    redis.call('HDEL', key, all[i])
  end
  longest = math.max(longest, lease)
end
if longest > 0 then
  redis.call('PEXPIRE', key, longest)
else
  redis.call('DEL', key)
  redis.call(ARGV[2], KEYS[2], '0')
end
return 1

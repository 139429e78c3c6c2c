-- permit_release.lua  KEYS[1]=permits KEYS[2]=leases KEYS[3]=channel ARGV: verb, 1 all or none, ids  returns {1 removed or 0, ..}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local back = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local removed, complete = {}, true
if ARGV[2] == '1' then
  for i = 3, #ARGV do
    complete = complete and redis.call('ZSCORE', KEYS[2], ARGV[i])
  end
end
for i = 3, #ARGV do
  local one = complete and redis.call('ZREM', KEYS[2], ARGV[i]) or 0
  removed[i - 2], back = one, back + one
end
-- Without a counter there is nothing to count: one made here would be wrong.
if back > 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  local free = redis.call('INCRBY', KEYS[1], back)
  if free > 0 then
    redis.call(ARGV[1], KEYS[3], free)
  end
end
return removed

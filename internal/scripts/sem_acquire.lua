-- sem_acquire.lua  KEYS[1]=permits KEYS[2]=lane KEYS[3]=channel ARGV: seq, confirmed, laneMillis, verb, n1, .., nk  returns {served, 1 set or 0, free}
local seq, confirmed = tonumber(ARGV[1]), tonumber(ARGV[2])
local value = redis.call('GET', KEYS[1])
local free = tonumber(value or 0)
if not free or free % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
local last, served, taken = string.match(redis.call('GET', KEYS[2]) or '0 0 0', '^(%d+) (%d+) (%d+)$')
last, served, taken = tonumber(last), tonumber(served), tonumber(taken)
if last > seq then
  return redis.error_reply('STALE a later call has been executed')
end
if last == seq then
  -- An earlier execution of this same call, whose reply was lost.
  return {served, value and 1 or 0, free}
end
local change = 0
if last > confirmed and value then
  change = taken -- by a call whose outcome its sender never learned
end
served, taken = 0, 0
for i = 5, #ARGV do
  local n = tonumber(ARGV[i])
  if not value or taken + n > free + change then
    break
  end
  served, taken = served + 1, taken + n
end
if taken ~= change then
  free = redis.call('INCRBY', KEYS[1], string.format('%.0f', change - taken))
end
if change > taken then
  redis.call(ARGV[4], KEYS[3], free)
end
redis.call('SET', KEYS[2], string.format('%.0f %d %.0f', seq, served, taken), 'PX', ARGV[3])
return {served, value and 1 or 0, free}

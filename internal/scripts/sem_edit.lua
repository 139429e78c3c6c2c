--[[
Sets (where nothing is set), adds or drains plain permits. A key of the call's own remembers what it returned, so that a second
execution changes nothing.

KEYS     1 permits (string: free permits)   2 the call's record (string)   3 permits of a fair semaphore of that name
ARGV     1 set, add or drain   2 permits   3 expiry of the semaphore, ms, or 0   4 PUBLISH or SPUBLISH   5 channel
         6 how long the record is kept, ms
Returns  set: 1 set or 0 not; add: the free permits then; drain: the free permits before
Errors   WRONGKIND the key holds no number, or the name is that of a fair semaphore
]]
local permits, record, fair_permits = KEYS[1], KEYS[2], KEYS[3]
local op, n, expiry_ms, verb, channel, kept_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local done = redis.call('GET', record)
if done then
  return tonumber(done) -- by an earlier execution of this same call, whose reply was lost
end
-- include: read_permits
if not stored and op ~= 'drain' and redis.call('EXISTS', fair_permits) == 1 then
  return redis.error_reply('WRONGKIND the name is that of a fair semaphore')
end

-- SET alone writes, so that it is refused before anything is written.
local result = 0
if op == 'add' then
  result = free + n
  redis.call('SET', permits, string.format('%.0f', result), 'KEEPTTL')
elseif op == 'drain' and stored then
  result = free
  redis.call('SET', permits, 0, 'KEEPTTL')
elseif op == 'set' and not stored then
  result = 1
  if expiry_ms == '0' then
    redis.call('SET', permits, n)
  else
    redis.call('SET', permits, n, 'PX', expiry_ms)
  end
end
redis.call('SET', record, string.format('%.0f', result), 'PX', kept_ms)
if op == 'add' or op == 'set' and result == 1 then
  redis.pcall(verb, channel, string.format('%.0f', op == 'add' and result or n)) -- a hint must not fail the call
end
return result

--[[
Ends a writer's hold of a read/write lock, and wakes waiters.

KEYS     1 name (hash: mode -> read or write, id -> 1)   2 fence, if tokens were reserved and not used
ARGV     1 id   2 PUBLISH or SPUBLISH   3 channel   and with a fence   4 the last token reserved   5 the last one used
Returns  1 released, or 3: see yields in wake_first; 0 the id does not hold it
]]
local name, fence = KEYS[1], KEYS[2]
local id, verb, channel = ARGV[1], ARGV[2], ARGV[3]
local last_reserved, last_used = ARGV[4], ARGV[5]

if redis.call('HEXISTS', name, id) == 0 then
  return 0
end
local reads = redis.call('HLEN', name) > 2
if not reads then
  redis.call('DEL', name)
else
  -- The writer keeps its holds as a reader, as with Redisson. Calls that change nothing prove that neither command is refused.
  redis.call('HDEL', name, '')
  redis.call('HSET', name, 'mode', 'write')
  redis.call('HDEL', name, id)
  redis.call('HSET', name, 'mode', 'read')
end
if fence and redis.pcall('GET', fence) == last_reserved then
  redis.pcall('SET', fence, last_used, 'KEEPTTL') -- if this fails, some tokens are skipped
end
-- include: line
if reads then
  -- include: admit_readers
  return 1
end
local ready_in, read_write, followers, nobody = 0, true, 0, false
-- include: wake_first
-- include: keep_in_hash
return 1 + yields

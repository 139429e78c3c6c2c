--[[
Releases a plain lock that the id holds, and wakes waiters.

KEYS     1 name (hash: id -> 1, or next -> the waiter for whom the lock is kept)   2 fence, if tokens were reserved and not used
ARGV     1 id   2 PUBLISH or SPUBLISH   and with a fence   3 the last token reserved   4 the last one used
Returns  1 released, or 3: see yields in wake_first; 0 the id does not hold it
]]
local name, fence = KEYS[1], KEYS[2]
local id, verb, last_reserved, last_used = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HDEL', name, id) == 0 then
  return 0
end
if fence and redis.pcall('GET', fence) == last_reserved then
  redis.pcall('SET', fence, last_used, 'KEEPTTL') -- if this fails, some tokens are skipped
end
local ready_in, read_write, followers, nobody = 0, false, 0, false
-- include: lock_channel
-- include: wake_first
-- include: keep_in_hash
return 1 + yields

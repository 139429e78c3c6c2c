--[[
Releases a string lock that the id holds, and wakes waiters.

KEYS     1 name (string: the id of the holder)   2 fence, if tokens were reserved and not used
ARGV     1 id   2 PUBLISH or SPUBLISH   3 channel   and with a fence   4 the last token reserved   5 the last one used
Returns  1 released, or 3: see yields in wake_first; 0 the id does not hold it
]]
local name, fence = KEYS[1], KEYS[2]
local id, verb, channel = ARGV[1], ARGV[2], ARGV[3]
local last_reserved, last_used = ARGV[4], ARGV[5]

if redis.call('GET', name) ~= id then
  return 0
end
redis.call('DEL', name)
if fence and redis.pcall('GET', fence) == last_reserved then
  redis.pcall('SET', fence, last_used, 'KEEPTTL') -- if this fails, some tokens are skipped
end
local ready_in, followers, nobody = 0, 0, false
-- include: line
-- include: wake_first
-- include: keep_in_string
return 1 + yields

--[[
Grants the longest prefix of requests for plain permits that fits. The permits are a bare number, so a call is known by the sequence
number that the key of its process remembers: a second execution finds it and changes nothing. What a call after the last confirmed
one and before this one took is given back: its sender never learned of it.

KEYS     1 permits (string: free permits)   2 the process's last acquiring call (string: "seq served taken")
ARGV     1 sequence number   2 the last confirmed one   3 how long the process's key is kept, ms   4 PUBLISH or SPUBLISH   5 channel
         6.. permits per request
Returns  {requests served, 1 if the permits were ever set else 0, free permits}
Errors   WRONGKIND the key holds no number, STALE a later call of the process has been executed
]]
local permits, calls = KEYS[1], KEYS[2]
local seq, confirmed, kept_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local verb, channel = ARGV[4], ARGV[5]
local first_request = 6

-- include: read_permits
local is_set = stored and 1 or 0
local record = redis.call('GET', calls) or '0 0 0'
local last, served, taken = string.match(record, '^(%d+) (%d+) (%d+)$')
last, served, taken = tonumber(last), tonumber(served), tonumber(taken)
if not last then
  return redis.error_reply('WRONGKIND the process key holds no call')
end
if last > seq then
  return redis.error_reply('STALE a later call has been executed')
end
if last == seq then
  return {served, is_set, free} -- executed before, and its reply lost
end

local back = 0
if last > confirmed and stored then
  back = taken
end
served, taken = 0, 0
for i = first_request, #ARGV do
  local n = tonumber(ARGV[i])
  if not stored or taken + n > free + back then
    break
  end
  served, taken = served + 1, taken + n
end

-- SET alone writes, so that it is refused before anything is written.
if taken ~= back then
  free = free + back - taken
  redis.call('SET', permits, string.format('%.0f', free), 'KEEPTTL')
end
redis.call('SET', calls, string.format('%.0f %d %.0f', seq, served, taken), 'PX', kept_ms)
if back > taken then
  redis.pcall(verb, channel, string.format('%.0f', free)) -- a hint must not fail the call
end
return {served, is_set, free}

--[[
Gives leased permits back.

KEYS     1 permits (string: free permits)   2 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 1 to release all of them or none else 0   4.. ids
Returns  per id   1 given back, 0 it was not held
Errors   WRONGKIND the key holds no number
]]
local permits, leases = KEYS[1], KEYS[2]
local verb, channel, all_or_none = ARGV[1], ARGV[2], ARGV[3] == '1'
local first_id = 4
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: read_permits

-- What is held of the ids. One that is named twice is given back once.
local held, found, complete = {}, {}, true
for from = first_id, #ARGV, 1000 do
  local ends = redis.call('ZMSCORE', leases, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  for j, instant in ipairs(ends) do
    local id = ARGV[from + j - 1]
    if instant and tonumber(instant) > now and not found[id] then
      found[id] = true
      held[#held + 1] = id
    else
      complete = false
    end
  end
end
local removed = {}
for i = first_id, #ARGV do
  local id = ARGV[i]
  removed[#removed + 1] = found[id] and (complete or not all_or_none) and 1 or 0
  found[id] = nil
end
if #held == 0 or all_or_none and not complete then
  return removed
end

-- ZREM is proven by a call that changes nothing, which also has the SET pass where memory is short: a release must.
redis.call('ZREM', leases, '')
if stored then -- a counter made here would be wrong
  redis.call('SET', permits, string.format('%.0f', free + #held), 'KEEPTTL')
end
for from = 1, #held, 1000 do
  redis.call('ZREM', leases, unpack(held, from, math.min(from + 999, #held)))
end
if stored and free + #held > 0 then
  redis.pcall(verb, channel, string.format('%.0f', free + #held)) -- a hint must not fail the call
end
return removed

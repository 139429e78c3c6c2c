--[[
Releases leased permits.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 1 to release all ids or none else 0   4 idle expiry, ms, or 0
         5.. ids
Returns  per id   1 released, 0 it was not held
Errors   WRONGKIND the key holds no number
]]
local permits, leases = KEYS[1], KEYS[2]
local verb, channel, all_or_none, idle_ms = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local first_id = 5
-- include: read_clock
-- include: read_permits

-- Find the ids that are held. An id that is given twice counts once.
local held, is_held, all_held = {}, {}, true
for from = first_id, #ARGV, 1000 do
  local ends = redis.call('ZMSCORE', leases, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  for j, instant in ipairs(ends) do
    local id = ARGV[from + j - 1]
    if instant and tonumber(instant) > now and not is_held[id] then
      is_held[id] = true
      held[#held + 1] = id
    else
      all_held = false
    end
  end
end
local released, is_counted = {}, {}
for i = first_id, #ARGV do
  local id = ARGV[i]
  released[#released + 1] = is_held[id] and not is_counted[id] and (all_held or not all_or_none) and 1 or 0
  is_counted[id] = true
end
if #held == 0 or all_or_none and not all_held then
  return released
end

-- include: idle
-- include: write_permits
-- include: last_that_stays
if idle_ms > 0 then
  last_end = last_that_stays(held, is_held)
end

-- A ZREM that changes nothing proves the right to remove. After it, Redis also accepts the SET while memory
-- is short.
redis.call('ZREM', leases, '')
if stored then -- do not create a number that was never set
  write_permits(free + #held, last_end)
end
for from = 1, #held, 1000 do
  redis.call('ZREM', leases, unpack(held, from, math.min(from + 999, #held)))
end
if stored and free + #held > 0 then
  redis.pcall(verb, channel, string.format('%.0f', free + #held)) -- a hint must not fail the call
end
return released

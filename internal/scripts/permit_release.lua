--[[
Releases leased permits. A permit whose lease has ended counts as held until it is reclaimed, unless ARGV 3 is 1.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 PUBLISH or SPUBLISH   2 channel   3 1 to release all ids or none, 0, or the waiter of the process that releases: see
         wake_waiters   4 idle expiry, ms, or 0   5.. ids
Returns  per id   1 released, 0 it was not held; the first one is 2 more if the waiter is to ask
Errors   WRONGKIND the key holds no number
]]
local permits, leases = KEYS[1], KEYS[2]
local verb, channel, all_or_none, own, idle_ms = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[3], ARGV[4] + 0
local first_id = 5
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters
local now = 0 -- every lease in the key counts as not ended
if all_or_none or idle_ms > 0 then
  local time = redis.call('TIME')
  now = math.floor(time[1] * 1000 + time[2] / 1000)
end
-- include: read_permits
-- include: check_permits

-- Find the ids that are held. An id that is given twice counts once. A single id needs no search: ZREM shows whether it was held.
local held, is_held, released = {}, nil, {}
if #ARGV == first_id and not all_or_none and idle_ms == 0 then
  held[1], released[1] = ARGV[first_id], 1
else
  is_held = {}
  for from = first_id, #ARGV, 1000 do
    local ends = redis.call('ZMSCORE', leases, unpack(ARGV, from, math.min(from + 999, #ARGV)))
    for j = 1, #ends do
      local id, instant = ARGV[from + j - 1], ends[j]
      if instant and (not all_or_none or tonumber(instant) > now) and not is_held[id] then
        is_held[id], held[#held + 1], released[#released + 1] = true, id, 1
      else
        released[#released + 1] = 0
      end
    end
  end
end
if all_or_none and #held < #released then
  for i = 1, #released do
    released[i] = 0
  end
  held = {}
end
if #held == 0 then
  return released
end

-- include: idle
-- include: write_permits
-- include: last_that_stays
if idle_ms > 0 then
  last_end = last_that_stays(held, is_held)
end

-- The SET comes first, and is undone if ZREM is refused or finds nothing. While memory is short, Redis accepts the SET
-- after a ZREM, which changes nothing.
if stored and not pcall(write_permits, free + #held, last_end) then
  redis.call('ZREM', leases, '')
  write_permits(free + #held, last_end)
end
for from = 1, #held, 1000 do
  local removed = redis.pcall('ZREM', leases, unpack(held, from, math.min(from + 999, #held)))
  if removed == 0 or type(removed) == 'table' then
    if stored then -- otherwise do not create a number that was never set
      redis.call('SET', permits, free, 'KEEPTTL')
    end
    return removed == 0 and {0} or removed
  end
end
if stored then
  released[1] = released[1] + wake_waiters(verb, channel, free + #held, own)
end
return released

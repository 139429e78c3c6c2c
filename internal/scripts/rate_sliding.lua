--[[
Decides requests for permits of one key by a sliding window: the permits of the current window, and of the window before it by the
share of it that still lies within the length of a window.

The state is the number of the current window and the permits granted in both; it expires when the next window ends. Windows follow
the server's clock. Nothing is charged ahead of its time. The permits of a window times its length must be below 2^53.

A part of a charge is given back to the window that it was charged to, as long as that is the current one or the one before. A debt
is charged to the current window; what is above the limit is owed, and is charged to the next window when that begins.

KEYS     1 state (string; absent: no permits are used)
ARGV     1 permits of a window
         2 length of a window in ms
         3 how many runs of equal requests follow, and for each run
           n: permits of one request
           how many requests there are
         then, if it is wanted,
           1 if the first request that is denied denies the rest, 2 if charges can be given back, 0 for neither
         then, if it is wanted,
           number of charges of which a part is given back, and for each
             stamp, index: the reply to the charge
             n: permits of the part
         then, for a debt,
           permits, permits by which it may exceed the limit
         without runs and all that, the call is a probe: it writes the state back
Returns  {permits of the window before, permits of the current window before any request, length of both in ms, ms of the
          current window that have passed, requests granted of each run ..,
          and if there are parts or a debt: permits given back or charged as a debt,
          and if charges can be given back: stamp, index of the current window}
]]
local state_key = KEYS[1]
local limit, length, runs = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local options = 3 + 2 * runs
local in_order, stamped = ARGV[options + 1] == '1', ARGV[options + 1] == '2'
local debt = options + 2 + 3 * (ARGV[options + 2] or 0)

-- include: clock
-- include: sliding_state

local value = redis.call('GET', state_key)
local now = clock_micros()
local s = sliding_state(state_key, value, math.floor(now / 1000), limit, length)

local settled, changed = 0, false
for at = options + 3, debt, 3 do
  local later, part = s.stamp > 0 and s.stamp == tonumber(ARGV[at]) and s.index - ARGV[at + 1], 0
  if later == 0 then
    part = math.min(s.current, ARGV[at + 2])
    s.current, s.owed = s.current - part, math.max(0, s.owed - part)
  elseif later == 1 then
    part = math.min(s.previous, ARGV[at + 2])
    s.previous = s.previous - part
  end
  settled, changed = settled + part, changed or part > 0
end
if ARGV[debt + 1] and s.length > 0 then
  local most = math.min(limit, ARGV[debt + 2])
  settled = math.max(0, math.min(ARGV[debt + 1], limit + most - s.used))
  s.owed = s.owed + math.max(0, settled - math.max(0, limit - s.current + s.owed))
  s.current, changed = s.current + settled, true
end
if changed then
  s.used = sliding_used(s)
end
local reply = {s.previous, s.current, s.length, s.elapsed}

local free, all, any = limit - s.used, true, false
for run = 1, runs do
  local n, count, granted = ARGV[2 * run + 2] + 0, ARGV[2 * run + 3] + 0, 0
  if free >= n and count > 0 and (all or not in_order) then
    granted = math.min(count, math.floor(free / n))
    free, s.current, any = free - granted * n, s.current + granted * n, true
  end
  all = all and granted == count
  reply[run + 4] = granted
end

if any and stamped and s.stamp == 0 then
  s.stamp = now
end
if any or changed then
  local state, left = sliding_text(s)
  redis.call('SET', state_key, state, 'PX', left)
elseif #ARGV == 3 then
  -- include: write_back
  write_back(state_key, value, '0:0:0:1')
end
if ARGV[options + 2] then
  reply[#reply + 1] = settled
end
if stamped then
  reply[#reply + 1] = s.stamp
  reply[#reply + 1] = s.index or 0
end
return reply

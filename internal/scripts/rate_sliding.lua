--[[
Decides requests for permits of one key by a sliding window: the permits of the current window, and of the window before it by the
share of it that still lies within the length of a window.

The state is the number of the current window and the permits granted in both; it expires when the next window ends. Windows follow
the server's clock. Nothing is charged ahead of its time. The permits of a window times its length must be below 2^53.

KEYS     1 state (string; absent: no permits are used)
ARGV     1 permits of a window
         2 length of a window in ms
         3 how many runs of equal requests follow, and for each run
           n: permits of one request
           how many requests there are
         then, if it is wanted,
           1 if the first request that is denied denies the rest
         without runs and all that, the call is a probe: it writes the state back
Returns  {permits of the window before, permits of the current window before any request, length of both in ms, ms of the
          current window that have passed, requests granted of each run ..}
]]
local state_key = KEYS[1]
local limit, length, runs = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local in_order = ARGV[4 + 2 * runs] == '1'

-- include: clock
-- include: sliding_state

local value = redis.call('GET', state_key)
local s = sliding_state(state_key, value, clock_millis(), limit, length)
local reply = {s.previous, s.current, s.length, s.elapsed}

local free, all, any = limit - s.used, true, false
for run = 1, runs do
  local n, count, granted = tonumber(ARGV[2 * run + 2]), tonumber(ARGV[2 * run + 3]), 0
  if free >= n and count > 0 and (all or not in_order) then
    granted = math.min(count, math.floor(free / n))
    free, s.current, any = free - granted * n, s.current + granted * n, true
  end
  all = all and granted == count
  reply[run + 4] = granted
end

if any then
  local state, left = sliding_text(s)
  redis.call('SET', state_key, state, 'PX', left)
elseif #ARGV == 3 then
  -- include: write_back
  write_back(state_key, value, '0:0:0:1')
end
return reply

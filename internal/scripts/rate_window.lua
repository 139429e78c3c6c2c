--[[
Decides requests for permits of one key by fixed windows.

The state is the number of used permits of the last window, and expires when that window ends. A window begins with the first
request after the end of the window before it. Waiters are charged a little ahead: they may open the next window before it
begins. Until it begins, requests that are not charged ahead are denied, because the window before it is used up.

A request is granted if it and the used permits of the window are within the limit of the request. Used permits never count in
a later window, also if they are more than a limit that was lowered. A window lasts as long as the longest limit of its grants.
A state of a later version counts as a window that is used up.

A part of a charge is given back to the window that it was charged to, while no later one was opened. A debt is charged to the
window that has begun. What is above the limit is charged to the next window, which this opens: the window before it is used up. A
next window that was opened before takes all of the debt.

KEYS     1 state (string; absent: no window)
ARGV     1 permits of a window
         2 length of a window in ms
         3 how long before a window begins its permits may be charged, in ms; 0 for requests that do not wait
         4 how many runs of equal requests follow, and for each run
           n: permits of one request
           how many requests there are
         then, if it is wanted,
           1 if the first request that is denied denies the rest, 2 if charges can be given back, 0 for neither
         then, if it is wanted,
           number of charges of which a part is given back, and for each
             stamp: the reply to the charge
             n: permits of the part
         then, for a debt,
           permits, permits by which it may exceed the limit
         without runs and all that, the call is a probe: it writes the state back
Returns  {used permits of the last window before any request, ms until it begins, ms until it ends if any is granted,
          requests granted of each run ..,
          and if there are parts or a debt: permits given back or charged as a debt,
          and if charges can be given back: stamp}
]]
local state_key = KEYS[1]
local limit, length, ahead, runs = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0
local options = 4 + 2 * runs
local in_order, stamped = ARGV[options + 1] == '1', ARGV[options + 1] == '2'
local debt = options + 2 + 2 * (ARGV[options + 2] or 0)

-- include: window_state

local used, begins, ends, lasts, stamp, begun = 0, 0, length, length, nil, 1 -- begun: windows that begin with this call
local value = redis.call('GET', state_key)
local left = (value or in_order) and redis.call('PTTL', state_key) or 0
if value then
  local stored, stored_begins, stored_ends, stored_lasts, stored_stamp = window_state(value, left, limit, length)
  if stored then
    used, begins, ends, lasts, stamp, begun = stored, stored_begins, stored_ends, stored_lasts, stored_stamp, 0
  end
end

local settled, changed = 0, false
for at = options + 3, debt, 2 do
  if stamp == tonumber(ARGV[at]) and stamp > 0 then
    local part = math.min(used, ARGV[at + 1])
    used, settled, changed = used - part, settled + part, true
  end
end
if ARGV[debt + 1] and stamp ~= 0 then
  local wanted, most = tonumber(ARGV[debt + 1]), math.min(limit, ARGV[debt + 2])
  settled, changed = math.min(wanted, math.max(0, (begins > 0 and most or limit) - used)), true
  used = used + settled
  local later = math.min(wanted - settled, most)
  if later > 0 and begins == 0 then
    lasts = math.max(lasts, length) -- or under a shorter length it seems to come from a clock that was set back
    used, begins, ends, stamp, begun = later, ends, ends + lasts, nil, begun + 1
    settled = settled + later
  end
end
local longer = math.max(0, length - lasts)
local reply = {used, begins, ends, nil} -- with room for one run

local all, any = true, false
for run = 1, runs do
  local n, count, granted = ARGV[2 * run + 3] + 0, ARGV[2 * run + 4] + 0, 0
  if n > limit or begins > ahead or in_order and not all then
    count = 0
  end
  while granted < count do
    local fit = (limit - used) / n
    fit = fit - fit % 1
    if fit >= 1 then
      fit = fit < count - granted and fit or count - granted
      used, granted = used + fit * n, granted + fit
      if longer > 0 then
        ends, lasts, longer = ends + longer, lasts + longer, 0
        reply[3] = ends
      end
    elseif ends <= ahead then
      used, ends, lasts, longer, stamp, begun = 0, ends + length, length, 0, nil, begun + 1
    else
      break
    end
  end
  all, any = all and granted == count, any or granted > 0
  reply[run + 3] = granted
end

if any and stamped and not stamp then
  local time = redis.call('TIME')
  stamp = time[1] * 1000000 + time[2]
end
if any or changed then
  local state = window_text(used, lasts, stamp)
  if begun == 0 and ends == left then
    redis.call('SET', state_key, state, 'KEEPTTL')
  else
    redis.call('SET', state_key, state, 'PX', ends)
    if begun > 0 and in_order then
      reply[3] = reply[3] + redis.call('PTTL', state_key) - ends -- exactly: a millisecond may have begun meanwhile
    end
  end
elseif #ARGV == 4 then
  -- include: write_back
  write_back(state_key, value, '0:1') -- a grant makes this window as long as the limit's
end
if ARGV[options + 2] then
  reply[runs + 4] = settled
end
if stamped then
  reply[#reply + 1] = stamp or 0
end
return reply

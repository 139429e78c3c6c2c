--[[
Decides requests for permits of one key by fixed windows.

The state is how many permits of the last window that was begun are used, and it expires with that window. A window begins
with the first request after the one before has ended, or for waiters when that ends, if that is soon. A state that
lasts longer than any that is written here, or that is no number, counts as none: the server's clock stepped back.

KEYS     1 state (string: used; absent: no window)
ARGV     1 permits of a window
         2 length of a window in ms
         3 how long before it begins a window may be charged, in ms
         4 how many runs of equal requests follow, and for each run
           n: permits of one request
           how many requests there are
         then, if any of it is wanted,
           1 if the first request that is denied denies the rest
           1 if the last run is charged in advance: if all before it were granted, and any
Returns  {used permits of the last window before any request, ms until it ends, requests granted of each run ..}
]]
local state_key = KEYS[1]
local limit, length, ahead, runs = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local options = 4 + 2 * runs
local in_order, in_advance = ARGV[options + 1] == '1', ARGV[options + 2] == '1'
local max_ahead = 1000

local used, ends, begun = 0, length, 1 -- begun: windows that begin with this call
local exact = in_order or in_advance
local value = redis.call('GET', state_key)
local left = (value or exact) and redis.call('PTTL', state_key) or 0
if left > 0 and left <= 2 * length + max_ahead and string.match(value, '^%d+$') then
  used, ends, begun = tonumber(value), left, 0
end
local reply = {used, ends, nil} -- with room for one run

local all, any = true, false
for run = 1, runs do
  local n, count, granted = tonumber(ARGV[2 * run + 3]), tonumber(ARGV[2 * run + 4]), 0
  if n > limit or in_order and not all or in_advance and run == runs and not (all and any) then
    count = 0
  end
  while granted < count do
    local fit = (limit - used) / n
    fit = fit - fit % 1
    if fit >= 1 then
      fit = fit < count - granted and fit or count - granted
      used, granted = used + fit * n, granted + fit
    elseif ends <= ahead then
      used, ends, begun = 0, ends + length, begun + 1
    else
      break
    end
  end
  all, any = all and granted == count, any or granted > 0
  reply[run + 2] = granted
end

if any and begun == 0 then
  redis.call('SET', state_key, string.format('%.0f', used), 'KEEPTTL')
elseif any then
  redis.call('SET', state_key, string.format('%.0f', used), 'PX', ends)
  if exact then
    reply[2] = reply[2] + redis.call('PTTL', state_key) - ends -- exactly: a millisecond may have begun meanwhile
  end
end
return reply

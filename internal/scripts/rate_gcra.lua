--[[
Decides requests for permits of one key by the generic cell rate algorithm, and takes a charge back.

The state is one instant: when the whole burst is available again. A time is in microseconds of the server's clock, with an exact
fraction num/den: every sum is below 2^53. Permits that were charged under another limit stay charged as time, so that each limit
holds for its requests. A state that is further ahead than any written one counts as none: the server's clock was set back. A
state of a later version counts as used up until it expires.

KEYS     1 state (string; absent: the whole burst is available)
ARGV     1 den
         2 us, 3 num: how far ahead of now the state may be: the time of a whole burst, plus the time by which a permit may be
                      charged early
         4 seconds that a whole burst takes, rounded up
         5 number of runs of equal requests, and for each run
           us, num: the time of one request
           number of requests
         then, none of it for a probe, which writes the state back, or for requests that nothing follows,
           if the first denied request denies the rest, and the charges can be given back: "line" if the permits are for waiters,
             who may use them until the state has come to their place, or us by which they are charged early; otherwise ""
           number of charges of which a part is given back, and for each
             period, returned, us, num: the reply to the charge
             us, num: the part
         then, for a debt, which is charged whatever the state is,
           us, num, and us by which it may exceed a whole burst
Returns  {now, us and num of the state, us given back or charged as a debt, rounded down, requests granted of each run ..,
          and if a part of charges can be given back: period, returned}

A part is given back to the state that later charges have left. Without the part, the state would be no lower than now plus these
charges, as if they had all been made now, or at the last instant at which their permits are used. So the charge is given back as far
as its own end, less what was given back since of the charges before it, lies beyond that instant: the rest has returned by itself.

No state is more than 100 years ahead.
]]
local state_key = KEYS[1]
local den, cap_num, runs = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])
local options = 5 + 3 * runs
local early, parts = ARGV[options + 1] or '', tonumber(ARGV[options + 2] or 0)
local in_order = early ~= ''
local debt = options + 2 + 6 * parts

-- include: gcra_state
-- include: gcra_returns
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cap_us = now + ARGV[2]

local us, num, period, returned, tail, changed = now, 0, nil, nil, nil, false
local reply = {now, 0, 0, 0, nil} -- with room for one run
local value = redis.call('GET', state_key)
if value then
  us, num, period, returned, tail = gcra_state(state_key, value, now, den, cap_us)
end
local last, returns = 0, {}
if parts > 0 or in_order then
  last, returns = gcra_returns(tail)
end
for at = options + 3, debt, 6 do
  local ends, place, since = tonumber(ARGV[at + 2]), ARGV[at + 1] + ARGV[at + 2], math.huge
  if period == tonumber(ARGV[at]) then
    since = returned - ARGV[at + 1]
    for _, r in ipairs(returns) do
      since = since - (r.place > place and r.us or 0)
    end
  end
  local beyond = ends - since - math.max(now, last)
  if us == ends - since and num == tonumber(ARGV[at + 3]) then
    beyond = us - now -- no charge follows
  end
  if beyond > 0 then
    local part_us, part_num = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    if part_us >= beyond then
      part_us, part_num = beyond, 0
    end
    local rounded = part_us + (part_num > 0 and 1 or 0)
    us, num, returned, changed = us - part_us, num - part_num, returned + rounded, true
    if num < 0 then
      us, num = us - 1, num + den
    end
    returns[#returns + 1] = {place = place, us = rounded}
    reply[4] = reply[4] + part_us
  end
end
if ARGV[debt + 1] and tail ~= false then
  local room = math.min(cap_us + ARGV[debt + 3], now + 3153600000000000) - us + 1 -- the bound is rounded down
  if room > 0 then
    local debt_us, debt_num = tonumber(ARGV[debt + 1]), tonumber(ARGV[debt + 2])
    if debt_us > room then
      debt_us, debt_num = room, 0
    end
    us, num, changed = us + debt_us, num + debt_num, true
    if num >= den then
      us, num = us + 1, num - den
    end
    reply[4] = debt_us
  end
end

local all, any = true, false
for run = 1, runs do
  local price_us, price_num = tonumber(ARGV[3 * run + 3]), tonumber(ARGV[3 * run + 4])
  local count, granted = tonumber(ARGV[3 * run + 5]), 0
  if in_order and not all then
    count = 0
  end
  -- As many as fit: the price is doubled as long as that may fit, and then what still fits is taken from the largest
  -- down, so that a thousand requests cost twenty steps.
  local size, smaller = 1, nil
  while 2 * size <= count and us + 2 * price_us <= cap_us do
    smaller = {price_us, price_num, smaller}
    price_us, price_num, size = 2 * price_us, 2 * price_num, 2 * size
    if price_num >= den then
      price_us, price_num = price_us + 1, price_num - den
    end
  end
  repeat
    local to_us, to_num = us + price_us, num + price_num
    if to_num >= den then
      to_us, to_num = to_us + 1, to_num - den
    end
    if granted + size <= count and (to_us < cap_us or to_us == cap_us and to_num <= cap_num) then
      us, num, granted = to_us, to_num, granted + size
    end
    size = size / 2
    if smaller then
      price_us, price_num, smaller = smaller[1], smaller[2], smaller[3]
    end
  until size < 1
  all, any = all and granted == count, any or granted > 0
  reply[run + 4] = granted
end

if any or changed then
  if in_order and not period then
    period, returned = now, 0
  end
  if any and in_order then
    last = math.max(last, early == 'line' and us or us - cap_us + now + early)
  end
  if period and (in_order or parts > 0) then
    tail = gcra_tail(last, returns, returned, now)
  end
  local left, burst_s = us - now, ARGV[4]
  if left > burst_s * 1000000 + 60000000 then
    burst_s = math.ceil(left / 1000000) -- or a call under another limit takes it for one of a clock that was set back
  end
  local text = gcra_text(us, num, den, burst_s, period, returned, tail)
  redis.call('SET', state_key, text, 'PX', (left - left % 1000) / 1000 + 1)
elseif #ARGV == 5 then
  -- include: write_back
  write_back(state_key, value, now)
end
reply[2], reply[3] = us, num
if in_order then
  reply[runs + 5], reply[runs + 6] = period or 0, returned or 0
end
return reply

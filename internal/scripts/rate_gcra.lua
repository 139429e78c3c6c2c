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
         then, all of it or none,
           1 if the first denied request denies the rest
           the state after a charge that is to be taken back first, and us, num of the charge; it is taken back if nothing was
           charged since
         a call without runs and all that is a probe: it writes the state back
Returns  {now, us and num of the state, 1 if it was taken back, requests granted of each run ..}
]]
local state_key = KEYS[1]
local den, cap_num, runs = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])
local options = 5 + 3 * runs
local in_order = ARGV[options + 1] == '1'

-- include: gcra_state
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cap_us = now + ARGV[2]

local us, num, changed = now, 0, false
local reply = {now, 0, 0, 0, nil} -- with room for one run
local value = redis.call('GET', state_key)
if value then
  us, num = gcra_state(state_key, value, now, den, cap_us)
  if value == ARGV[options + 2] then
    us, num, changed = us - ARGV[options + 3], num - ARGV[options + 4], true
    if num < 0 then
      us, num = us - 1, num + den
    end
    if us < now then
      us, num = now, 0
    end
    reply[4] = 1
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
  local left = us - now
  redis.call('SET', state_key, gcra_text(us, num, den, ARGV[4]), 'PX', (left - left % 1000) / 1000 + 1)
elseif #ARGV == 5 then
  -- include: write_back
  write_back(state_key, value, now)
end
reply[2], reply[3] = us, num
return reply

--[[
Decides requests that want permits of several limits each: all of them or none.

Each limit belongs to a key and counts by the generic cell rate algorithm, by fixed windows or by a sliding window; rate_gcra,
rate_window and rate_sliding describe the states. Requests are decided in order. Nothing is charged before its time.

The script reads everything before it writes, and SET is the only command that writes.

KEYS     the state of each limit, in order (string)
ARGV     1 1 if the first request that is denied denies the rest, 2 if charges can be given back, 0 for neither
         2 how many limits follow, and for each limit
           "gcra", den, us, num: what a whole burst is worth; how many seconds it takes, rounded up
           "window" or "sliding", permits of a window, its length in ms
         then how many runs of equal requests follow, none for a probe, which writes all states back, and for each run
           how many requests there are; 0 asks only how long one would have to wait
           and for each limit the price of one request: us, num for GCRA; permits for the others
Returns  {now, for each run: requests granted,
          for each limit: us, num of the state, or of the first hole, by how many us all places may end later, and how many us,
          rounded up, have room there before others; or used permits, ms until the window begins, ms until it ends;
          or permits of the window before, of the current window, their length in ms, ms of the current window that have passed;
          and if charges can be given back: period, returned, us and num of the end of the last charge; or stamp; or stamp, index}

The scripts of the single limits give charges back and charge debts.
]]
local arguments = 0
local function next_argument()
  arguments = arguments + 1
  return ARGV[arguments]
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- include: gcra_state
-- include: gcra_returns
-- include: gcra_places
-- include: window_state
-- include: sliding_state
-- include: write_back

-- Each kind of limit has: open, which reads its arguments and its state; price, which reads the price of a request; fits;
-- take, which charges a price that fits; write; blank, the state that a probe writes where there is none; and report, the
-- fields of its state that the reply holds; stamp, which makes its charges returnable, and the fields of stamps.
local gcra = {blank = now, report = {'first_us', 'first_num', 'pieces', 'room'}, stamps = {'period', 'returned', 'to_us', 'to_num'}}
local window = {blank = '0:1', report = {'used', 'begins', 'ends'}, stamps = {'stamp'}} -- a grant makes it as long as the limit's
local sliding = {blank = '0:0:0:1', report = {'previous', 'current', 'length', 'elapsed'}, stamps = {'stamp', 'index'}}

gcra.open = function(key)
  local l = {key = key, den = tonumber(next_argument()), us = now, num = 0}
  l.full_us, l.full_num, l.burst_s = tonumber(next_argument()), tonumber(next_argument()), next_argument()
  l.value = redis.call('GET', key)
  if l.value then
    l.us, l.num, l.period, l.returned, l.tail = gcra_state(key, l.value, now, l.den, now + l.full_us)
  end
  gcra_places(l, now)
  return l
end

gcra.price = function()
  return {us = tonumber(next_argument()), num = tonumber(next_argument())}
end

gcra.fits = function(l, price)
  l.to_us, l.to_num, l.hole = gcra_fit(l, price.us, price.num)
  return not before(now + l.full_us, l.full_num, l.to_us, l.to_num)
end

gcra.take = function(l, price)
  gcra_take(l, price.us, price.num, l.to_us, l.to_num, l.hole)
end

gcra.stamp = function(l)
  if not l.period then
    l.period, l.returned = now, 0
  end
end

gcra.write = function(l)
  local left = l.us - now
  local text = gcra_text(l.us, l.num, l.den, l.burst_s, l.period, l.returned, l.period and gcra_tail(l, now))
  redis.call('SET', l.key, text, 'PX', (left - left % 1000) / 1000 + 1)
end

window.open = function(key)
  local l = {key = key, limit = tonumber(next_argument()), length = tonumber(next_argument())}
  local value = redis.call('GET', l.key)
  l.value = value
  l.left = value and redis.call('PTTL', l.key) or 0
  l.used, l.begins, l.ends, l.lasts, l.stamp = window_state(value, l.left, l.limit, l.length)
  if not l.used then
    l.used, l.begins, l.ends, l.lasts, l.left = 0, 0, l.length, l.length, 0
  end
  return l
end

window.price = function()
  return tonumber(next_argument())
end

window.fits = function(l, n)
  return l.begins == 0 and l.used + n <= l.limit
end

window.take = function(l, n)
  local longer = math.max(0, l.length - l.lasts)
  l.used, l.ends, l.lasts = l.used + n, l.ends + longer, l.lasts + longer
end

window.stamp = function(l)
  l.stamp = l.stamp or now
end

window.write = function(l)
  local state = window_text(l.used, l.lasts, l.stamp)
  if l.ends == l.left then
    redis.call('SET', l.key, state, 'KEEPTTL')
  else
    redis.call('SET', l.key, state, 'PX', l.ends)
  end
end

sliding.open = function(key)
  local limit, length = tonumber(next_argument()), tonumber(next_argument())
  local value = redis.call('GET', key)
  local l = sliding_state(key, value, math.floor(now / 1000), limit, length)
  l.key, l.value, l.limit = key, value, limit
  return l
end

sliding.price = window.price

sliding.fits = function(l, n)
  return l.used + n <= l.limit
end

sliding.take = function(l, n)
  l.used, l.current = l.used + n, l.current + n
end

sliding.stamp = function(l)
  if l.stamp == 0 then
    l.stamp = now
  end
end

sliding.write = function(l)
  local state, left = sliding_text(l)
  redis.call('SET', l.key, state, 'PX', left)
end

local kinds = {gcra = gcra, window = window, sliding = sliding}
local order = next_argument()
local in_order, stamped = order == '1', order == '2'
local limits = {}
for i = 1, tonumber(next_argument()) do
  local kind = kinds[next_argument()]
  limits[i] = kind.open(KEYS[i])
  limits[i].kind = kind
end

-- fit_all reports whether all limits grant a request.
local function fit_all(prices)
  for i, l in ipairs(limits) do
    if not l.kind.fits(l, prices[i]) then
      return false
    end
  end
  return true
end

local reply = {now}
local denied, any = false, false
local runs = tonumber(next_argument())
for _ = 1, runs do
  local count, granted = tonumber(next_argument()), 0
  local prices = {}
  for i, l in ipairs(limits) do
    prices[i] = l.kind.price()
  end
  while not (denied and in_order) and (granted < count or count == 0) do
    if not fit_all(prices) then
      denied = denied or count > 0
      break
    elseif count == 0 then
      break
    end
    for i, l in ipairs(limits) do
      l.kind.take(l, prices[i])
    end
    granted, any = granted + 1, true
  end
  reply[#reply + 1] = granted
end

if any then
  for _, l in ipairs(limits) do
    if stamped then
      l.kind.stamp(l)
    end
    l.kind.write(l)
  end
elseif runs == 0 then
  for _, l in ipairs(limits) do
    write_back(l.key, l.value, l.kind.blank)
  end
end
for _, l in ipairs(limits) do
  if l.kind == gcra then
    l.first_us, l.first_num, l.room = gcra_first(l)
    l.pieces = l.us - l.first_us + (l.first_us < l.us and 1 or 0)
  end
  for _, field in ipairs(l.kind.report) do
    reply[#reply + 1] = l[field]
  end
  for _, field in ipairs(stamped and l.kind.stamps or {}) do
    reply[#reply + 1] = l[field] or 0
  end
end
return reply

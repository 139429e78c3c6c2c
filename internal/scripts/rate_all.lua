--[[
Decides requests that want permits of several limits each: all of them or none.

A limit is that of a key by the generic cell rate algorithm or by fixed windows, or the sliding log of a limiter; rate_gcra,
rate_window and rate_log say what they store. Requests are decided in order. Nothing is charged before its time.

Nothing is left half done by a command that is refused: before the first write, everything is read, and what is written to
logs is tried in forms that change nothing. Otherwise SET is all that is called.

KEYS     of each limit, in order: 1 state of a key (string), or config (hash), value (string) and permits (zset) of a log
ARGV     1 1 if the first request that is denied denies the rest
         2 how many limits follow, and for each limit
           "gcra", den, us, num: what a whole burst is worth; how many seconds it takes, rounded up
           "window", permits of a window, its length in ms
           "log", the rate at which this client has had the log counted lately, or nothing
         then how many runs of equal requests follow, none for a probe, which writes all states back, and for each run
           how many requests there are; 0 asks only what one would have to wait
           and for each limit what one request is worth
           us, num of a key by GCRA; permits of a window; permits of a log, and the member of each request
Returns  {now, for each run: requests granted, and for each log: us, at least, until a request that it denied could be
          granted, 0 if it denied none, -1 if it never can be,
          for each limit: us, num of the state; used permits, ms until the window begins, ms until it ends; rate, interval in
          ms, permits left, us until the log is empty}
Errors   NOTCONFIGURED no limit is set   PERCLIENT the limit is of that scope, and so not counted in Redis
         OLDFORM the value is that of a Redisson before 3.13.3
]]
local page_size = 128 -- entries read at once
local max_count = 4096 -- entries counted for no other reason than to be sure
local max_leaving = 8192 -- entries that are let go by one call
local max_walk = 1024 -- entries looked at only to tell how long to wait
local max_ahead = 60000000 -- us; nothing is ever entered further ahead than an interval and that

local arguments, keys = 0, 0
local function next_argument()
  arguments = arguments + 1
  return ARGV[arguments]
end

local function next_key()
  keys = keys + 1
  return KEYS[keys]
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.3f', now / 1000)

-- include: gcra_state
-- include: window_state
-- include: log_entry
-- include: write_back

-- Each kind of limit has: open, which reads its arguments and its state; price, which reads what a request is worth; fits; take, which
-- charges what fits; write, and write_back for a probe; and report, which adds to the reply. A log has try too.
local gcra, window, log = {}, {}, {}

gcra.open = function()
  local l = {key = next_key(), den = tonumber(next_argument()), us = now, num = 0}
  l.cap_us, l.cap_num, l.burst_s = now + next_argument(), tonumber(next_argument()), next_argument()
  local value = redis.call('GET', l.key)
  l.value = value
  if value then
    l.us, l.num = gcra_state(l.key, value, now, l.den, l.cap_us)
  end
  return l
end

gcra.price = function()
  return {us = tonumber(next_argument()), num = tonumber(next_argument())}
end

gcra.fits = function(l, price)
  l.to_us, l.to_num = l.us + price.us, l.num + price.num
  if l.to_num >= l.den then
    l.to_us, l.to_num = l.to_us + 1, l.to_num - l.den
  end
  return l.to_us < l.cap_us or l.to_us == l.cap_us and l.to_num <= l.cap_num
end

gcra.take = function(l)
  l.us, l.num = l.to_us, l.to_num
end

gcra.write = function(l)
  local left = l.us - now
  redis.call('SET', l.key, gcra_text(l.us, l.num, l.den, l.burst_s), 'PX', (left - left % 1000) / 1000 + 1)
end

gcra.write_back = function(l)
  write_back(l.key, l.value, now)
end

gcra.report = function(l, reply)
  reply[#reply + 1], reply[#reply + 2] = l.us, l.num
end

window.open = function()
  local l = {key = next_key(), limit = tonumber(next_argument()), length = tonumber(next_argument())}
  local value = redis.call('GET', l.key)
  l.value = value
  l.left = value and redis.call('PTTL', l.key) or 0
  l.used, l.begins, l.ends, l.lasts = window_state(value, l.left, l.limit, l.length)
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

window.write = function(l)
  local state = string.format('%.0f:%.0f', l.used, l.lasts)
  if l.ends == l.left then
    redis.call('SET', l.key, state, 'KEEPTTL')
  else
    redis.call('SET', l.key, state, 'PX', l.ends)
  end
end

window.write_back = function(l)
  write_back(l.key, l.value, '0:1') -- a grant makes this window as long as the limit's
end

window.report = function(l, reply)
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = l.used, l.begins, l.ends
end

-- sum adds up what the entries of a log from one rank to another hold, where one in an unknown form counts as so many.
log.sum = function(l, first, last, unknown)
  local all = 0
  for rank = first, last, page_size do
    for _, member in ipairs(redis.call('ZRANGE', l.permits_key, rank, math.min(rank + page_size - 1, last))) do
      all = all + (size(member) or unknown)
    end
  end
  return all
end

-- count counts what is left, and lets all that has expired go.
log.count = function(l)
  l.counted, l.leaving = true, l.expired
  l.left = l.rate - log.sum(l, l.expired, l.card - l.too_far - 1, l.rate)
end

log.open = function()
  local l = {config_key = next_key(), value_key = next_key(), permits_key = next_key(), new = {}, taken = 0}
  local counted_at = next_argument()
  local config = redis.call('HMGET', l.config_key, 'rate', 'interval', 'type', 'keepAliveTime')
  l.rate, l.interval_ms, l.keep_ms = tonumber(config[1]), tonumber(config[2]), tonumber(config[4]) or 0
  if not (l.rate and l.interval_ms and config[3] and l.rate > 0 and l.interval_ms > 0
      and l.rate % 1 + l.interval_ms % 1 == 0 and l.rate + l.interval_ms < 9e15) then
    return nil, 'NOTCONFIGURED no limit'
  elseif config[3] == '1' then
    return nil, 'PERCLIENT the limit is counted by each client'
  end
  l.interval = l.interval_ms * 1000
  l.value = redis.call('GET', l.value_key)
  l.ttl = l.keep_ms > 0 and l.keep_ms or redis.call('PTTL', l.config_key)
  l.card = redis.call('ZCARD', l.permits_key)
  l.expired = redis.call('ZCOUNT', l.permits_key, '-inf', string.format('%.3f', (now - l.interval) / 1000))
  l.too_far, l.leaving = 0, l.expired -- entries that no clock made which is right, and expired ones that are let go
  l.newest = time_of(redis.call('ZREVRANGE', l.permits_key, 0, 0, 'WITHSCORES')[2] or 0)
  local limit = now + l.interval + max_ahead
  if l.newest > limit then
    l.too_far = redis.call('ZCOUNT', l.permits_key, string.format('(%.3f', limit / 1000), '+inf')
    l.newest = time_of(redis.call('ZREVRANGE', l.permits_key, l.too_far, l.too_far, 'WITHSCORES')[2] or 0)
  end
  if l.card == 0 and counted_at == '' and l.keep_ms == 0 and l.ttl < 0
      and l.value and redis.call('PTTL', l.value_key) > 0 then
    return nil, 'OLDFORM the value is that of a Redisson before 3.13.3'
  end
  local stored = tonumber(l.value or '')
  local live = l.card - l.expired - l.too_far
  if l.too_far == 0 and stored and stored % 1 == 0 and (counted_at == config[1] or live > max_count) then
    l.leaving = math.min(l.expired, max_leaving)
    l.left = math.min(stored + log.sum(l, 0, l.leaving - 1, 0), l.rate - live) -- each entry holds one at least
  end
  if not l.left or live == 0 then
    log.count(l)
  end
  return l
end

log.price = function(count)
  local price = {n = tonumber(next_argument()), first = arguments + 1, used = 0}
  arguments = arguments + count
  return price
end

-- until_free is how many us it takes until enough of the oldest entries have left, or nil if all of them do not suffice.
log.until_free = function(l, n)
  local free, rank, last, waits = l.left, l.leaving, l.card - l.too_far, 1
  while rank < last and rank - l.leaving < max_walk do
    local page = redis.call('ZRANGE', l.permits_key, rank, math.min(rank + page_size, last) - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      free, waits = free + (size(page[i]) or l.counted and l.rate or 0), math.max(waits, time_of(page[i + 1]) + l.interval - now)
      if free >= n then
        return waits
      end
    end
    rank = rank + page_size
  end
  if rank < last then
    return waits -- at least
  elseif free + l.taken >= n then
    return l.interval
  end
end

log.fits = function(l, price)
  l.waits = 0
  if price.n > l.rate then
    l.waits = -1
    return false
  elseif price.n <= l.left then
    return true
  end
  l.waits = log.until_free(l, price.n)
  if not l.waits and not l.counted then
    log.count(l)
    l.left = l.left - l.taken
    return log.fits(l, price)
  end
  l.waits = l.waits or l.interval
  return false
end

log.take = function(l, price)
  l.left, l.taken = l.left - price.n, l.taken + price.n
  l.new[#l.new + 1], l.new[#l.new + 2] = stamp, ARGV[price.first + price.used]
  price.used, l.newest = price.used + 1, math.max(l.newest, now)
end

log.try = function(l)
  redis.call('ZADD', l.permits_key, 'XX', 0, l.new[2] or '') -- which is not there
  if l.leaving + l.too_far > 0 then
    redis.call('ZREMRANGEBYRANK', l.permits_key, 1, 0)
  end
  redis.call('SET', l.value_key, l.value or '', l.value and 'KEEPTTL' or 'XX')
end

log.write_back = log.try

log.write = function(l)
  local text = string.format('%.0f', l.left)
  if l.ttl > 0 then
    redis.call('SET', l.value_key, text, 'PX', l.ttl)
  else
    redis.call('SET', l.value_key, text)
  end
  -- Added first, as in rate_log. New entries lie between those that go.
  redis.call('ZADD', l.permits_key, unpack(l.new))
  if l.ttl > 0 then
    redis.call('PEXPIRE', l.permits_key, l.ttl)
  end
  if l.too_far > 0 then
    redis.call('ZREMRANGEBYRANK', l.permits_key, -l.too_far, -1)
  end
  if l.leaving > 0 then
    redis.call('ZREMRANGEBYRANK', l.permits_key, 0, l.leaving - 1)
  end
end

log.report = function(l, reply)
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = l.rate, l.interval_ms, l.left
  reply[#reply + 1] = math.max(0, l.newest + l.interval - now)
end

local kinds = {gcra = gcra, window = window, log = log}
local in_order = next_argument() == '1'
local limits = {}
for i = 1, tonumber(next_argument()) do
  local kind = kinds[next_argument()]
  local l, problem = kind.open()
  if problem then
    return redis.error_reply(problem)
  end
  l.kind, limits[i] = kind, l
end

-- fit_all reports whether all limits grant a request. Every one of them is asked, so that each tells how long it takes.
local function fit_all(prices)
  local all = true
  for i, l in ipairs(limits) do
    all = l.kind.fits(l, prices[i]) and all
  end
  return all
end

local reply = {now}
local denied, any = false, false
local runs = tonumber(next_argument())
for _ = 1, runs do
  local count, granted = tonumber(next_argument()), 0
  local prices = {}
  for i, l in ipairs(limits) do
    prices[i], l.waits = l.kind.price(count), 0
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
  for _, l in ipairs(limits) do
    if l.kind == log then
      reply[#reply + 1] = l.waits
    end
  end
end

if any then
  for _, l in ipairs(limits) do
    if l.kind == log then
      log.try(l)
    end
  end
  for _, l in ipairs(limits) do
    if l.kind == log and l.ttl > 0 then
      redis.call('PEXPIRE', l.config_key, l.ttl)
    end
  end
  for _, l in ipairs(limits) do
    l.kind.write(l)
  end
elseif runs == 0 then
  for _, l in ipairs(limits) do
    l.kind.write_back(l)
  end
end
for _, l in ipairs(limits) do
  l.kind.report(l, reply)
end
return reply

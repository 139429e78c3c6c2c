--[[
Decides requests for permits by the sliding log of Redisson's RRateLimiter, and takes entries back.

The log has an entry for every grant. The score of an entry is the time from which on its permits may be used, in ms with a
fraction; it may be in the future. The member is an id and, in the last four bytes, low byte first, the number of permits. An
entry counts until its age is the interval. The value is the rate less the permits in the log, so that a call need not count
the log; it may be below 0. A repeated call of a peer makes the value wrong. So a client that has not had the log counted
lately asks for a count. A log of more than 4096 entries is not counted just for that: there the script trusts the value, as
far as it can be right. An entry in an unknown form, of a later version, counts as the whole rate until it leaves.

A limit of the scope PerClient has a value and a log for each client, under keys that end in the id of the client. Its
value ends in "@" and the epoch, a field of the config that changes whenever the limit is set. A value of another epoch is
void, and so is its log. Both keys expire with their last entry.

A refused command leaves nothing half done: before the first write each later one is tried in a form that changes nothing, or
the writes before it are undone by a command that was not refused.

KEYS     1 config (hash)   2 value (string)   3 permits (zset: the log)
ARGV     1 the rate at which this client has had the log counted lately, or nothing
         2 for waiters, how many of the requests, the last ones, are for waiters that have not come yet, and otherwise
           -1. Requests of waiters are granted in order, and the first that is denied denies the rest; one for a waiter to
           come is entered only if that is later than all the others, for an entry is for the waiters of that time.
           -2 for a probe, which has no requests: it writes the value back
           -3 if one request follows that may be granted in part. Its entry is made smaller then; a repeated call
           finds it by its id, unless more than 128 entries have been made since
         -4 if one request follows that is a debt: it is entered until the limit is exceeded by the rate, in part as for -3
         3 how long before its time an entry may be entered, in us; 0 unless in order
         4 the scope to which keys 2 and 3 belong: 0 for Overall, 1 for PerClient
         5 how many members follow that are taken out first, or made smaller, and for each
           the member, and how many of its permits stay
           then the member of each request
Returns  {rate, interval in ms, permits left, us until the log is empty, members taken out,
           for each request: us until it may be used, if it was entered; -1 if it is for more than the rate; or -2 less the
           us, at least, until it could be entered, or until a part of it could be,
          if it may be granted in part: the permits of the entry}
Errors   NOTCONFIGURED no limit is set   OLDFORM the value is that of a Redisson before 3.13.3
         PERCLIENT, OVERALL the scope of the limit, if keys 2 and 3 belong to the other one
]]
local config_key, value_key, permits_key = KEYS[1], KEYS[2], KEYS[3]
local debt = ARGV[2] == '-4'
local partial = ARGV[2] == '-3' or debt
local counted_at, in_order, ahead = ARGV[1], ARGV[2] ~= '-1' and not partial, tonumber(ARGV[3])
local scope = ARGV[4]
local first_back, first_new = 6, 6 + 2 * ARGV[5]
local requests = #ARGV - first_new + 1
local waiting = requests - ARGV[2]

local page_size = 128 -- entries read at once
local max_count = 4096 -- entries counted only to verify the value
local max_leaving = 8192 -- entries that one call removes, unless it needs more, or expects to leave
local max_walk = 1024 -- entries read only to compute the time to wait; each counts as several of those
local max_ahead = 60000000 -- us; no entry is further ahead than an interval and this

local config = redis.call('HMGET', config_key, 'rate', 'interval', 'type', 'keepAliveTime', 'epoch')
local rate, interval_ms, keep_ms = tonumber(config[1]), tonumber(config[2]), tonumber(config[4]) or 0
if not (rate and interval_ms and config[3] and rate > 0 and interval_ms > 0
    and rate % 1 + interval_ms % 1 == 0 and rate + interval_ms < 9e15) then
  return redis.error_reply('NOTCONFIGURED no limit')
end
local per_client, epoch = config[3] == '1', config[5] or ''
if per_client ~= (scope == '1') then
  return redis.error_reply(per_client and 'PERCLIENT each client has a count' or 'OVERALL all clients share a count')
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = interval_ms * 1000
local edge = string.format('%.3f', (now - interval) / 1000) -- older entries have expired
local stamp = string.format('%.3f', now / 1000)

-- include: log_entry

-- The value, without its epoch.
local value = redis.call('GET', value_key)
local held = tonumber(value or '')
local void, void_entry = false, nil -- the state is of another epoch: what it says is ignored, and the first of its entries
if per_client then
  local number, of = string.match(value or '', '^(-?%d+)@(%d*)$')
  held, void = tonumber(number or ''), of and of ~= epoch and ARGV[2] ~= '-2'
  if void and requests == 0 then
    return {rate, interval_ms, rate, 0, 0}
  elseif void then
    held, void_entry = nil, redis.call('ZRANGE', permits_key, 0, 0)[1]
  end
end

-- resized returns an entry with another number of permits. The id has the number too; the rest of it is random.
local function resized(member, n)
  local packed = string.char(n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256, math.floor(n / 16777216))
  return string.sub(member, 1, 4) .. packed .. string.sub(member, 9, 17) .. packed
end

local whole = ARGV[first_new]
if partial then
  for _, member in ipairs(void and {} or redis.call('ZREVRANGE', permits_key, 0, page_size - 1)) do
    if resized(member, 0) == resized(whole, 0) then
      ARGV[first_new] = member
    end
  end
end

-- What is asked for: members that are not in the log yet, which a repeated call finds there.
local have, wanted = {}, 0
if requests > 0 then
  have = void and {} or redis.call('ZMSCORE', permits_key, unpack(ARGV, first_new))
  for i = 1, requests do
    wanted = wanted + (have[i] and 0 or size(ARGV[first_new + i - 1]))
  end
end

-- What is given back: members that are in force. Of some a part stays, under another member with the same time.
local back, stay, given = {}, {}, 0
for i = first_back, first_new - 2, 2 do
  local member, staying = ARGV[i], tonumber(ARGV[i + 1])
  local score = not void and redis.call('ZMSCORE', permits_key, member)[1]
  if score and time_of(score) > now - interval and not back[member] and staying < size(member) then
    back[member], back[#back + 1], given = staying, member, given + size(member) - staying
    if staying > 0 then
      stay[#stay + 1], stay[#stay + 2] = score, resized(member, staying)
    end
  end
end

-- What is left, by the value, with the oldest entries let go that have expired.
local page = void and {} or redis.call('ZRANGEBYSCORE', permits_key, '-inf', edge, 'LIMIT', 0, page_size)
local expired, expired_left = #page, 0 -- entries that are let go, and those that stay for a later call
local left = held and held % 1 == 0 and held + given
for i = 1, left and expired or 0 do
  left = left + (size(page[i]) or 0)
end

local answers, new, entered = {}, {}, 0
local counted = false -- the whole log
local newest, too_far = 0, 0 -- when the last entry may be used; entries after it that no clock has made which is right
if counted_at == config[1] and left and left <= rate and wanted <= left and expired < page_size
    and not in_order and requests > 0 then
  -- As a rule, all is granted at once.
  for i = 1, requests do
    local member = ARGV[first_new + i - 1]
    if have[i] then
      answers[i] = math.max(0, time_of(have[i]) - now)
    else
      answers[i], entered = 0, entered + size(member)
      new[#new + 1], new[#new + 2] = stamp, member
    end
  end
else
  -- entries returns an iterator over the log from a rank on, which gives what an entry holds and when it leaves.
  local function entries(rank)
    local last = too_far > 0 and redis.call('ZCARD', permits_key) - too_far or math.huge
    local page, at = {}, 1
    return function()
      if at > #page and rank < last and not void then
        page = redis.call('ZRANGE', permits_key, rank, math.min(rank + page_size, last) - 1, 'WITHSCORES')
        rank, at = #page > 0 and rank + page_size or last, 1
      end
      local member, score = page[at], page[at + 1]
      at = at + 2
      if member then
        return back[member] or size(member) or counted and rate or 0, time_of(score) + interval
      end
    end
  end

  -- leaving returns an iterator over the entries in the order in which they leave, those included that are new.
  local function leaving()
    local stored, at = entries(expired), 1
    return function()
      local holds, leaves = stored()
      if not holds and new[at] then
        holds, leaves = size(new[at + 1]), time_of(new[at]) + interval
        at = at + 2
      end
      return holds, leaves
    end
  end

  -- count_left counts what is left, and lets all that has expired go.
  local function count_left()
    expired, expired_left = void and 0 or redis.call('ZCOUNT', permits_key, '-inf', edge), 0
    left, counted = rate, true
    for holds in entries(expired) do
      left = left - holds
    end
  end

  -- release lets more expired entries go, as many as it takes to have what is wanted.
  local function release()
    local all = redis.call('ZCOUNT', permits_key, '-inf', edge)
    if all <= max_leaving and all == redis.call('ZCARD', permits_key) then
      left, expired = rate, all
      return
    end
    local next_entry = entries(expired)
    while left < wanted and expired < all do
      left, expired = left + next_entry(), expired + 1
    end
    expired_left = all - expired
  end

  local function enter(i, n, at)
    answers[i] = at - now
    new[#new + 1], new[#new + 2] = string.format('%.3f', at / 1000), ARGV[first_new + i - 1]
    entered = entered + n
  end

  local function deny(i, at)
    answers[i] = -2 - math.max(1, at - now)
  end

  -- decide_at_once grants every request that fits now, and tells the others when enough of the oldest entries will have
  -- left. It returns false if all of them do not suffice: then the value was wrong.
  local function decide_at_once(asked)
    local denied = {}
    for _, request in ipairs(asked) do
      if request.n <= left - entered then
        enter(request.i, request.n, now)
      else
        denied[#denied + 1] = request
      end
    end
    table.sort(denied, function(a, b) return a.n < b.n end)
    local next_leaving, free, at, walked = leaving(), left - entered, now, 0
    for _, request in ipairs(denied) do
      while free < request.n and walked < max_walk do
        local holds, leaves = next_leaving()
        if not holds then
          return false
        end
        free, at, walked = free + holds, math.max(at, leaves), walked + 1
      end
      deny(request.i, at)
    end
    return true
  end

  -- decide_in_order enters each request at the first time at which it fits and that is not before that of the one ahead
  -- of it, until one would be entered too far ahead. One that has to wait is not entered before the newest entry, so that
  -- no interval holds more than the rate, wherever it begins. It returns false as decide_at_once does.
  local function decide_in_order(asked)
    local next_leaving, free, at, walked, denied = leaving(), left, now, 0, false
    local latest = now
    for _, request in ipairs(asked) do
      while not denied and free < request.n and walked < max_leaving do
        local holds, leaves = next_leaving()
        if not holds then
          return false
        end
        free, at = free + holds, math.max(at, leaves, newest)
        walked = walked + (at - now > ahead and max_leaving / max_walk or 1)
      end
      denied = denied or free < request.n or at - now > ahead or request.i > waiting and at <= latest
      if request.i <= waiting then
        latest = at
      end
      if denied then
        deny(request.i, at)
      else
        enter(request.i, request.n, at)
        free = free - request.n
      end
    end
    return true
  end

  local function decide()
    local asked = {}
    answers, new, entered = {}, {}, 0
    if partial and not have[1] then
      ARGV[first_new] = resized(whole, math.max(1, math.min(size(whole), debt and left + rate or left)))
    end
    for i = 1, requests do
      local n = size(ARGV[first_new + i - 1])
      if n > rate and not debt then
        answers[i] = -1
      elseif debt and not have[i] and n <= left + rate then
        enter(i, n, now)
      elseif have[i] then
        answers[i] = math.max(0, time_of(have[i]) - now)
      else
        asked[#asked + 1] = {i = i, n = n}
      end
    end
    if in_order then
      return decide_in_order(asked)
    end
    return decide_at_once(asked)
  end

  if left and expired == page_size then
    release()
  end
  if left and counted_at ~= config[1] then
    local card = redis.call('ZCARD', permits_key)
    if card == 0 and counted_at == '' and keep_ms == 0 and not per_client and redis.call('PTTL', value_key) > 0
        and redis.call('PTTL', config_key) < 0 then
      return redis.error_reply('OLDFORM the value is that of a Redisson before 3.13.3')
    elseif card <= max_count then
      left = nil
    else
      left = math.min(left, rate - redis.call('ZCOUNT', permits_key, '(' .. edge, '+inf')) -- each holds one at least
    end
  end
  if not left or left > rate then
    count_left()
  end
  if not void and (requests == 0 or in_order or wanted > left) then
    local limit = now + interval + max_ahead
    newest = time_of(redis.call('ZREVRANGE', permits_key, 0, 0, 'WITHSCORES')[2] or 0)
    if newest > limit then
      too_far = redis.call('ZCOUNT', permits_key, string.format('(%.3f', limit / 1000), '+inf')
      newest = time_of(redis.call('ZREVRANGE', permits_key, too_far, too_far, 'WITHSCORES')[2] or 0)
      count_left()
    end
  end
  if not decide() then
    count_left()
    decide()
  end
end
left = left - entered
for i = 1, #stay do
  new[#new + 1] = stay[i]
end

if requests + #back > 0 then
  local text = string.format('%.0f', left)
  local config_ttl = keep_ms > 0 and keep_ms or redis.call('PTTL', config_key)
  local ttl = config_ttl
  if per_client then
    text, ttl = text .. '@' .. epoch, interval_ms + max_ahead / 1000
  end
  if #new > 0 and (ttl > 0 or not value) or void then
    redis.call('ZADD', permits_key, 'XX', 0, new[2] or '') -- which is not there
  end
  if #back > 0 then
    redis.call('ZREM', permits_key, back[1] .. '?')
  end
  if expired + too_far > 0 or void then
    redis.call('ZREMRANGEBYRANK', permits_key, 1, 0)
  end
  if ttl > 0 then
    redis.call('SET', value_key, value or '', value and 'KEEPTTL' or 'XX')
    if config_ttl > 0 then
      redis.call('PEXPIRE', config_key, config_ttl)
    end
    redis.call('SET', value_key, text, 'PX', ttl)
  elseif text ~= value then
    redis.call('SET', value_key, text)
  end
  -- Entries are added before others go: while a slot of a cluster migrates, Redis refuses a key that the script has emptied. New
  -- entries lie between those that go. Of a void log one entry stays until then, as an expired one.
  if void_entry then
    redis.call('ZADD', permits_key, 'XX', 0, void_entry)
    redis.call('ZREMRANGEBYRANK', permits_key, 1, -1)
    expired = 1
  end
  if #new > 0 then
    local done = redis.pcall('ZADD', permits_key, unpack(new))
    if type(done) == 'table' and done.err then -- it was not tried: nothing has changed but the value
      redis.call('SET', value_key, value)
      return done
    end
  end
  if ttl > 0 then
    redis.call('PEXPIRE', permits_key, ttl)
  end
  if too_far > 0 then
    redis.call('ZREMRANGEBYRANK', permits_key, -too_far, -1)
  end
  if expired > 0 then
    redis.call('ZREMRANGEBYRANK', permits_key, 0, expired - 1)
  end
  if #back > 0 then
    redis.call('ZREM', permits_key, unpack(back))
  end
elseif ARGV[2] == '-2' then
  redis.call('ZADD', permits_key, 'XX', 0, '') -- which is not there
  redis.call('SET', value_key, value or '', value and 'KEEPTTL' or 'XX')
end

local last = math.max(#new > 0 and time_of(new[#new - 1]) or 0, newest)
local reply = {rate, interval_ms, left + expired_left, math.max(0, last + interval - now), #back}
for i = 1, requests do
  reply[5 + i] = answers[i]
end
if partial then
  reply[7] = size(ARGV[first_new])
end
return reply

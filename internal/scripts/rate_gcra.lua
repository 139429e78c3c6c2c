--[[
Decides requests for permits of one key by the generic cell rate algorithm, and takes a charge back.

The state is one instant: when the whole burst is available again. A time is in microseconds of the server's clock, with an exact
fraction num/den: every sum is below 2^53. Permits that were charged under another limit stay charged as time, so that each limit
holds for its requests. A state that is further ahead than any written one counts as none: the server's clock was set back. A
state of a later version counts as used up until it expires. gcra_places describes charges for later, and what was given back.

KEYS     1 state (string; absent: the whole burst is available)
ARGV     1 den
         2 us, 3 num: the time of a whole burst
         4 seconds that a whole burst takes, rounded up
         5 number of runs of equal requests, and for each run
           us, num: the time of one request
           number of requests
         then, none of it for a probe, which writes the state back, or for requests that nothing follows,
           "" if each request is decided by itself, at once. Otherwise the first denied request denies the rest, the charges can be
             given back, and this is how early in us the permits of a request may be charged, the second one and later ones by
             the time of a request earlier; and then 1 if the first request counts as a later one, else 0
           number of charges of which a part is given back, and for each
             period, returned, us, num: the reply to the charge
             us, num: the part
             1 if it was charged ahead, else 0: of returned, what was owed is left out then, because the charge will move forward by it
           if the first denied request denies the rest, for each run
             how early in us the permits may be charged at most
             1 if a denial for that reason denies no other request, and is -1 in the reply, else 0
         then, for a debt, which is charged whatever the state is,
           us, num, and us by which it may exceed a whole burst
Returns  {now, us and num of the state, or of the first hole, us given back or charged as a debt, rounded up, requests granted of
            each run ..,
          and if charges can be given back: period, returned, us owed, rounded up, and in the order of the requests the places of those
            granted, as us, num: the end; number of requests that have followed each other there;
          and unless nothing but simple requests and states took part: by how many us the end of all places may be later, and how many
            us, rounded up, have room in the hole}

A part is given back to the state that later charges have left. Without the part, the state would be no lower than now plus these
charges, as if they had all been made now. So the charge is given back as far as its own end, less what was given back since of the
charges before it, lies beyond now: the rest has returned by itself. A charge for later that cannot be used yet leaves a hole.

No state is more than 100 years ahead.
]]
local state_key = KEYS[1]
local den, full_us, full_num, runs = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[5] + 0
local options = 5 + 3 * runs

-- include: gcra_state
-- include: gcra_charge
-- include: gcra_returns
-- include: write_back
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local zone_us = now + full_us

local us, num, period, returned, tail = now, 0, nil, nil, nil
local value = redis.call('GET', state_key)
if value then
  us, num, period, returned, tail = gcra_state(state_key, value, now, den, zone_us)
end

local reply = {now, 0, 0, 0, nil} -- with room for one run
local quiet = tail == nil or tail == '' or tail and string.find(tail, '^:0:[%d,;]*$') -- no place is beyond the zone of its writer
if #ARGV == options and (quiet or tail == false) then
  local any = false
  for run = 1, runs do
    local granted
    us, num, granted = gcra_fill(us, num, den, ARGV[3 * run + 5] + 0, ARGV[3 * run + 3] + 0, ARGV[3 * run + 4] + 0,
      zone_us, full_num)
    any = any or granted > 0
    reply[run + 4] = granted
  end
  if any then
    local text, px = gcra_written(now, us, num, den, ARGV[4], period, returned, tail)
    redis.call('SET', state_key, text, 'PX', px)
  elseif runs == 0 then
    write_back(state_key, value, now)
  end
  reply[2], reply[3] = us, num
  return reply
end

local early, parts = ARGV[options + 1] or '', tonumber(ARGV[options + 3] or 0)
local in_order, own = early ~= '', options + 3 + 7 * parts
local debt = own + (in_order and 2 * runs or 0)

-- Most returns and most grants happen while no place lies beyond the zone. Without the tables of places they take two thirds of the time.
quiet = quiet and us < zone_us and not ARGV[debt + 1]
local to_us, to_num, given, so_far, returns, places, any, all = us, num, 0, returned, nil, {}, false, true
for at = options + 4, quiet and own or 0, 7 do
  if period == tonumber(ARGV[at]) then
    returns = returns or gcra_returns(tail or '')
    local ends_us = tonumber(ARGV[at + 2])
    local place, since = ARGV[at + 1] + ends_us, so_far - ARGV[at + 1]
    for _, r in ipairs(returns) do
      since = since - (r.place > place and r.us or 0)
    end
    local beyond, part_us, part_num = ends_us - since - now, tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
    quiet = quiet and ARGV[at + 6] == '0'
    if beyond > 0 then
      if part_us >= beyond then
        part_us, part_num = beyond, 0
      end
      to_us, to_num = to_us - part_us, to_num - part_num
      if to_num < 0 then
        to_us, to_num = to_us - 1, to_num + den
      end
      if to_us < now then
        to_us, to_num = now, 0
      end
      part_us = part_us + (part_num > 0 and 1 or 0)
      if part_us > 0 then
        given, so_far = given + part_us, so_far + part_us
        returns[#returns + 1] = {place = place, us = part_us}
      end
    end
  end
end
for run = 1, quiet and runs or 0 do
  local granted, count = 0, ARGV[3 * run + 5] + 0
  to_us, to_num, granted = gcra_fill(to_us, to_num, den, count, ARGV[3 * run + 3] + 0, ARGV[3 * run + 4] + 0, zone_us, full_num)
  reply[run + 4] = granted
  any, all = any or granted > 0, all and granted == count
  if in_order and granted > 0 then
    local n = #places
    places[n + 1], places[n + 2], places[n + 3] = to_us, to_num, granted
  end
end
if quiet and (not in_order or all and to_us < zone_us) then
  if in_order and not period and any then
    period, so_far = now, 0
  end
  if any or given > 0 then
    if given > 0 then
      local list = gcra_list(returns, so_far, now)
      tail = list == '' and list or ':0:' .. list
    end
    local text, px = gcra_written(now, to_us, to_num, den, ARGV[4], period, so_far, tail)
    redis.call('SET', state_key, text, 'PX', px)
  end
  reply[2], reply[3], reply[4] = to_us, to_num, given
  if in_order then
    reply[runs + 5], reply[runs + 6], reply[runs + 7] = period or 0, so_far or 0, 0
    for i = 1, #places do
      reply[runs + 7 + i] = places[i]
    end
  end
  reply[#reply + 1], reply[#reply + 2] = 0, 0
  return reply
end

-- include: gcra_places
local s = {
  us = us, num = num, den = den, full_us = full_us, full_num = full_num, period = period, returned = returned, tail = tail or nil,
}
gcra_places(s, now)
local changed = false
for at = options + 4, own, 7 do
  local ends_us, ends_num = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local part_us, part_num, ahead = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), ARGV[at + 6] == '1'
  if s.period ~= tonumber(ARGV[at]) then
    -- the state began anew since
  elseif ahead and before(zone_us, full_num, ends_us, ends_num) then
    local from_us, from_num = ends_us - part_us, ends_num - part_num
    if from_num < 0 then
      from_us, from_num = from_us - 1, from_num + den
    end
    if from_us < now then
      from_us, from_num = now, 0
    end
    if gcra_free(s, from_us, from_num, ends_us, ends_num) then
      reply[4], changed = reply[4] + ends_us - from_us + (ends_num > from_num and 1 or 0), true
      gcra_lower(s, 0, 0)
    end
  else
    local place, since = ARGV[at + 1] + ends_us, s.returned - ARGV[at + 1]
    for _, r in ipairs(s.returns) do
      since = since - (r.place > place and not ahead and r.us or 0)
    end
    local beyond = ends_us - since - now
    if beyond > 0 then
      if part_us >= beyond then
        part_us, part_num = beyond, 0
      end
      local given, left_us, left_num = gcra_lower(s, part_us, part_num)
      s.returned = s.returned + given
      if given > 0 and not ahead then
        s.returns[#s.returns + 1] = {place = place, us = given}
      end
      given = math.min(given, part_us + (part_num > 0 and 1 or 0)) + gcra_leave(s, now + beyond, left_us, left_num)
      reply[4], changed = reply[4] + given, changed or given > 0
    end
  end
end
if ARGV[debt + 1] and tail ~= false then
  local room = math.min(gcra_room(s, tonumber(ARGV[debt + 3])), now + 3153600000000000 - s.us)
  local debt_us, debt_num = tonumber(ARGV[debt + 1]), tonumber(ARGV[debt + 2])
  if debt_us > room then
    debt_us, debt_num = room, 0
  end
  if room > 0 then
    gcra_owe(s, debt_us, debt_num)
    reply[4], changed = debt_us + (debt_num > 0 and 1 or 0), true
  end
end

local later = ARGV[options + 2] == '1'
all, any, places = true, false, {}
-- put notes the place of granted requests, which may follow the last one.
local function put(count, to_us, to_num, follows)
  local n = #places
  if follows then
    places[n - 2], places[n - 1], places[n] = to_us, to_num, places[n] + count
  else
    places[n + 1], places[n + 2], places[n + 3] = to_us, to_num, count
  end
end
for run = 1, runs do
  local price_us, price_num = ARGV[3 * run + 3] + 0, ARGV[3 * run + 4] + 0
  local count, granted, fits = ARGV[3 * run + 5] + 0, 0, tail ~= false
  local own_us, lone = in_order and ARGV[own + 2 * run - 1] or 0, in_order and ARGV[own + 2 * run] == '1'
  local hopeless
  while fits and granted < count and not (in_order and not all) do
    local ahead = tonumber(own_us)
    local near = later and early + price_us or ahead
    local cap_us = zone_us + math.min(ahead, near)
    local to_us, to_num, hole = gcra_fit(s, price_us, price_num)
    fits = to_us < cap_us or to_us == cap_us and to_num <= full_num
    if fits then
      gcra_take(s, price_us, price_num, to_us, to_num, hole)
      put(1, to_us, to_num, false)
      granted, any, later = granted + 1, true, in_order
      if not hole and granted < count then -- the others follow
        local ends_us, ends_num, more = gcra_fill(s.us, s.num, den, count - granted, price_us, price_num,
          zone_us + (in_order and math.min(ahead, early + price_us) or 0), full_num)
        if more > 0 then
          gcra_take(s, price_us, price_num, ends_us, ends_num)
          put(more, ends_us, ends_num, true)
          granted = granted + more
        end
        fits = granted == count
      end
    else
      hopeless = lone and near >= ahead
      all = hopeless
    end
  end
  all = all and (granted == count or hopeless)
  reply[run + 4] = hopeless and -1 or granted
end

if any or changed then
  if not s.period and in_order then
    s.period, s.returned = now, 0
  end
  if any and in_order then
    for i = 1, #places, 3 do
      s.last = math.max(s.last, places[i] - full_us + 1)
    end
  end
  local text, px = gcra_written(now, s.us, s.num, den, ARGV[4], s.period, s.returned, s.period and gcra_tail(s, now))
  redis.call('SET', state_key, text, 'PX', px)
elseif #ARGV == 5 then
  write_back(state_key, value, now)
end
local room
reply[2], reply[3], room = gcra_first(s)
if in_order then
  reply[runs + 5], reply[runs + 6], reply[runs + 7] = s.period or 0, s.returned or 0, s.owed_us + (s.owed_num > 0 and 1 or 0)
  for i = 1, #places do
    reply[#reply + 1] = places[i]
  end
end
reply[#reply + 1] = s.us - reply[2] + (reply[2] < s.us and 1 or 0)
reply[#reply + 1] = room
return reply

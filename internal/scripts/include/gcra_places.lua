-- The places of GCRA. A charge takes a stretch of the server's time, its place: for requests that come one after the other, from where
-- the state was to where it is then. The permits can be used from a whole burst before the end of their place on. What ends before
-- now + the whole burst (of several limits, the shortest), the zone, can be used now; a place beyond it is for a waiter or a
-- reservation, and is used later.
--
-- What is given back inside the zone lowers the state, because requests that can be used at once have no order: those that follow
-- move forward. Beyond the zone the places stay where they are, so a place that is given back there is a hole, which the next request
-- takes that it has room for. If there are places beyond the zone, what is given back inside it is owed: a hole that moves with the
-- zone as time passes, and stays below the place that is used next, whose own permits must fit above it: the widest place could be.
-- What has no room there is a hole where it was charged. When no place is left beyond the zone, all holes lower the state.
--
-- The tail of a state that has a period is ":last:place,us;place,us;..:den:burst:short:used:debts:widest:us:num:..". It ends after what
-- was given back if no place is beyond the zone, and is "" if nothing was given back either. So are those of older versions, which take
-- holes for charges.
--   last       until when the permits that were charged ahead are used, or 0
--   place,us   what was given back inside the zone, each with its order number, in order
--   den        of the holes
--   burst      the us of a whole burst, of several limits the shortest
--   short      where the last place of that limit ends, or 0
--   used       up to where a place beyond the zone may be used already, by a debt or by a limit with a longer burst, or 0
--   debts      how many us of that are used; 1e15 or more if it is not known
--   widest     the us of the widest place
--   us:num     what is owed
--   ..         the holes, each as the us and num of its beginning and of its end
--
-- The order number of a charge is its end plus all us that had been given back when it was made, so they rise. A charge has moved
-- forward by what was given back since of the charges before it, and not by the others. A charge that was made ahead counts as moved by
-- all that was given back since, and what is given back of it as given back before all: so never too much is given back.

local function before(us, num, other_us, other_num)
  return us < other_us or us == other_us and num < other_num
end

-- gcra_sum adds a time, which may be negative.
local function gcra_sum(s, us, num, more_us, more_num)
  us, num = us + more_us, num + more_num
  if num >= s.den then
    return us + 1, num - s.den
  elseif num < 0 then
    return us - 1, num + s.den
  end
  return us, num
end

-- gcra_raise cuts the holes that begin below what is owed.
local function gcra_raise(s)
  local h = s.holes[1]
  while h and before(h.us, h.num, s.now + s.owed_us, s.owed_num) do
    h.us, h.num = s.now + s.owed_us, s.owed_num
    if before(h.us, h.num, h.to_us, h.to_num) then
      return
    end
    table.remove(s.holes, 1)
    h = s.holes[1]
  end
end

-- gcra_lower gives back inside the zone, if there are places for later as much as has room below the place that is used next. It
-- returns the us that were given back, rounded up, and the us and num that were not.
local function gcra_lower(s, us, num)
  if not before(s.zone_us, s.zone_num, s.us, s.num) then
    s.last = 0 -- there are none
  end
  if s.last <= s.now then
    s.us, s.num = gcra_sum(s, s.us, s.num, -us, -num)
    s.us, s.num = gcra_sum(s, s.us, s.num, -s.owed_us, -s.owed_num)
    for _, h in ipairs(s.holes) do
      local hole_us, hole_num = gcra_sum(s, h.to_us, h.to_num, -h.us, -h.num)
      s.us, s.num = gcra_sum(s, s.us, s.num, -hole_us, -hole_num)
      s.returned = s.returned + hole_us + (hole_num > 0 and 1 or 0)
    end
    s.owed_us, s.owed_num, s.widest, s.holes = 0, 0, 0, {}
    if s.us < s.now then
      s.us, s.num = s.now, 0
    end
    return us + (num > 0 and 1 or 0), 0, 0
  end
  local left_us, left_num = 0, 0
  local most_us, most_num = gcra_sum(s, s.zone_us - s.now - s.widest, s.zone_num, -s.owed_us, -s.owed_num)
  if most_us < 0 then
    most_us, most_num = 0, 0
  end
  if before(most_us, most_num, us, num) then
    left_us, left_num = gcra_sum(s, us, num, -most_us, -most_num)
    us, num = most_us, most_num
  end
  s.owed_us, s.owed_num = gcra_sum(s, s.owed_us, s.owed_num, us, num)
  gcra_raise(s)
  return us + (num > 0 and 1 or 0), left_us, left_num
end

-- gcra_places completes the state s, which has us, num, period, returned and tail, and the den, the whole burst full_us and full_num
-- of a limit: with what is owed, the holes, sorted, and open, which says that these are for requests of the limit.
local function gcra_places(s, now)
  local den = s.den
  local last, list, rest, of, least, short, used, debts, widest, owed_us, owed_num, holes
  if (s.tail or '') ~= '' then
    last, list, rest = string.match(s.tail, '^:(%d+):?([%d,;]*)(.*)$')
    of, least, short, used, debts, widest, owed_us, owed_num, holes =
      string.match(rest or '', '^:(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)(.*)$')
  end
  local same = tonumber(of or den) == den
  s.last, s.burst, s.used, s.widest = tonumber(last or 0), tonumber(least or s.full_us), tonumber(used or 0), tonumber(widest or 0)
  s.short, s.debts = tonumber(short or 0), tonumber(debts or 0)
  if s.short <= now + s.burst then -- all its places have been used
    s.burst = math.max(s.burst, s.full_us)
  end
  local zone_us, zone_num = now + s.full_us, s.full_num
  if s.burst < s.full_us then
    zone_us, zone_num = now + s.burst, 0
  end
  s.now, s.returns, s.holes, s.zone_us, s.zone_num = now, gcra_returns(list or ''), {}, zone_us, zone_num
  if not (s.period and least) and before(zone_us, zone_num, s.us, s.num) then
    s.used, s.debts, s.widest = s.us + 1, 1e15, s.full_us + 1 -- charges that are not known
  end
  if s.used <= zone_us then
    s.debts = 0
  end
  -- What ends before all places that may not be used yet is owed.
  local empty = s.last <= now -- all have been used
  local top_us = zone_us - s.widest
  local sum_us, sum_num = tonumber(owed_us or 0), same and tonumber(owed_num or 0) or 0
  for a, b, c, d in string.gmatch(holes or '', ':(%d+):(%d+):(%d+):(%d+)') do
    local h = {us = tonumber(a), num = tonumber(b), to_us = tonumber(c), to_num = tonumber(d)}
    if not same then
      h.us, h.num, h.to_num = h.us + (h.num > 0 and 1 or 0), 0, 0
    end
    if not before(h.us, h.num, h.to_us, h.to_num) then
      -- less than a microsecond
    elseif empty or not before(top_us, zone_num, h.to_us, h.to_num) then
      local us, num = gcra_sum(s, h.to_us, h.to_num, -h.us, -h.num)
      sum_us, sum_num = gcra_sum(s, sum_us, sum_num, us, num)
      s.returned = s.returned + us + (num > 0 and 1 or 0)
    else
      if h.us < now then
        h.us, h.num = now, 0
      end
      if before(h.us, h.num, h.to_us, h.to_num) then
        s.holes[#s.holes + 1] = h
      end
    end
  end
  -- When the widest place was used, no more was owed than had room below it.
  local most_us = zone_us - now - s.widest
  if before(most_us, zone_num, sum_us, sum_num) then
    sum_us, sum_num = math.max(0, most_us), 0
  end
  s.owed_us, s.owed_num = 0, 0
  gcra_lower(s, sum_us, sum_num)
  local beyond = before(zone_us, zone_num, s.us, s.num)
  s.open = not before(zone_us, zone_num, s.used, 0) and not (beyond and s.full_us < s.burst)
end

-- gcra_fit returns where a request for a price ends, and what it takes: 0 for what is owed, the number of a hole, or nil if it comes
-- after all places.
local function gcra_fit(s, us, num)
  if s.open and not before(s.owed_us, s.owed_num, us, num) then
    local to_us, to_num = gcra_sum(s, s.zone_us - s.widest, s.zone_num, -s.owed_us, -s.owed_num)
    to_us, to_num = gcra_sum(s, to_us, to_num, us, num)
    return to_us, to_num, 0
  end
  for i = 1, s.open and #s.holes or 0 do
    local h = s.holes[i]
    local to_us, to_num = gcra_sum(s, h.us, h.num, us, num)
    if not before(h.to_us, h.to_num, to_us, to_num) then
      return to_us, to_num, i
    end
  end
  return gcra_sum(s, s.us, s.num, us, num)
end

-- gcra_shorten is called before a charge of any kind. Under a limit with a shorter burst, what is there may be used already.
local function gcra_shorten(s)
  if s.full_us < s.burst then
    s.burst, s.short = s.full_us, 0
    if before(s.zone_us, s.zone_num, s.us, s.num) then
      s.used, s.debts = math.max(s.used, s.us + 1), 1e15
    end
  end
end

-- gcra_take charges what gcra_fit has found for a price, or for several requests of that price that follow each other.
local function gcra_take(s, us, num, to_us, to_num, hole)
  local h = s.holes[hole]
  gcra_shorten(s)
  if hole == 0 then
    s.owed_us, s.owed_num = gcra_sum(s, s.owed_us, s.owed_num, -us, -num)
    return
  elseif h then
    h.us, h.num = to_us, to_num
    if not before(to_us, to_num, h.to_us, h.to_num) then
      table.remove(s.holes, hole)
    end
  else
    if s.full_us > s.burst and before(s.zone_us, s.zone_num, to_us, to_num) then
      s.used, s.debts = math.max(s.used, to_us + 1), s.debts + to_us + 1 - math.max(s.us, s.zone_us)
    end
    s.us, s.num = to_us, to_num
  end
  if before(s.zone_us, s.zone_num, to_us, to_num) then
    s.widest = math.max(s.widest, us + (num > 0 and 1 or 0))
    if s.full_us == s.burst then
      s.short = math.max(s.short, to_us + 1)
    end
    local most_us = s.zone_us - s.now - s.widest
    if before(most_us, s.zone_num, s.owed_us, s.owed_num) then
      s.owed_us, s.owed_num = math.max(0, most_us), 0
    end
  end
end

-- gcra_free makes a hole of the stretch between two instants, and reports whether it was charged.
local function gcra_free(s, us, num, to_us, to_num)
  if before(s.us, s.num, to_us, to_num) then
    return false
  end
  local at = 1
  while s.holes[at] and before(s.holes[at].to_us, s.holes[at].to_num, us, num) do
    at = at + 1
  end
  local h = s.holes[at]
  while h and not before(to_us, to_num, h.us, h.num) do -- they touch
    if before(h.us, h.num, us, num) then
      us, num = h.us, h.num
    end
    if before(to_us, to_num, h.to_us, h.to_num) then
      to_us, to_num = h.to_us, h.to_num
    end
    table.remove(s.holes, at)
    h = s.holes[at]
  end
  if before(to_us, to_num, s.us, s.num) then
    table.insert(s.holes, at, {us = us, num = num, to_us = to_us, to_num = to_num})
  else
    s.us, s.num = us, num
  end
  return true
end

-- gcra_leave makes a hole of the end of a charge inside the zone, as far as it is above what is owed. It returns its us.
local function gcra_leave(s, to_us, us, num)
  local from_us, from_num = gcra_sum(s, to_us, 0, -us, -num)
  if before(from_us, from_num, s.now + s.owed_us, s.owed_num) then
    from_us, from_num = s.now + s.owed_us, s.owed_num
  end
  if before(from_us, from_num, to_us, 0) and gcra_free(s, from_us, from_num, to_us, 0) then
    return to_us - from_us
  end
  return 0
end

-- gcra_owe charges a debt: to what is owed and to the holes, and then after all places.
local function gcra_owe(s, us, num)
  gcra_shorten(s)
  if before(us, num, s.owed_us, s.owed_num) then
    s.owed_us, s.owed_num = gcra_sum(s, s.owed_us, s.owed_num, -us, -num)
    return
  end
  us, num = gcra_sum(s, us, num, -s.owed_us, -s.owed_num)
  s.owed_us, s.owed_num = 0, 0
  while s.holes[1] do
    local h = s.holes[1]
    local hole_us, hole_num = gcra_sum(s, h.to_us, h.to_num, -h.us, -h.num)
    if before(us, num, hole_us, hole_num) then
      h.us, h.num = gcra_sum(s, h.us, h.num, us, num)
      return
    end
    us, num = gcra_sum(s, us, num, -hole_us, -hole_num)
    table.remove(s.holes, 1)
  end
  s.us, s.num = gcra_sum(s, s.us, s.num, us, num)
  if before(s.zone_us, s.zone_num, s.us, s.num) then
    s.used, s.debts = s.us + 1, s.debts + math.min(us + 1, s.us + 1 - s.zone_us)
  end
end

-- gcra_room returns how much debt there may be if it may exceed a whole burst by so many us. Places for later do not count.
local function gcra_room(s, most)
  gcra_shorten(s)
  if s.last > s.now and s.debts < 1e15 and before(s.zone_us, s.zone_num, s.us, s.num) then
    return most - s.debts + 1
  end
  return s.now + s.full_us + most - s.us + 1 -- the bound is rounded down
end

-- gcra_first returns the first instant from which on a place may begin, at the earliest, and how many us, rounded up, have room there
-- before other places.
local function gcra_first(s)
  if not s.open then
    return s.us, s.num, 0
  end
  local us, num, room = s.us, s.num, 0
  local h = s.holes[1]
  if h then
    us, num, room = h.us, h.num, h.to_us - h.us + (h.to_num > h.num and 1 or 0)
  end
  if (s.owed_us > 0 or s.owed_num > 0) and before(s.zone_us - s.owed_us - 1, s.zone_num, us, num) then
    us, num = gcra_sum(s, s.zone_us, s.zone_num, -s.owed_us, -s.owed_num)
    room = s.owed_us + (s.owed_num > 0 and 1 or 0)
  end
  return us, num, room
end

-- gcra_tail returns the tail. It leaves out what is beyond 100 holes.
local function gcra_tail(s, now)
  local list = gcra_list(s.returns, s.returned, now)
  if s.last <= now and not s.holes[1] and s.owed_us == 0 and s.owed_num == 0 and not before(s.zone_us, s.zone_num, s.us, s.num) then
    return list == '' and list or ':0:' .. list
  end
  local holes = {}
  for i = 1, math.min(#s.holes, 100) do
    local h = s.holes[i]
    holes[i] = string.format(':%.0f:%.0f:%.0f:%.0f', h.us, h.num, h.to_us, h.to_num)
  end
  return string.format(':%.0f:%s:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f%s', s.last > now and s.last or 0,
    list, s.den, s.burst, s.short > now and s.short or 0, s.used > now and s.used or 0, s.debts, s.widest,
    s.owed_us, s.owed_num, table.concat(holes))
end

-- sliding_used returns the permits that are compared with a limit.
local function sliding_used(s)
  local share = s.previous
  if s.previous * s.length < 9007199254740992 then
    local overlap = s.previous * (s.length - math.max(0, s.elapsed))
    local part = overlap % s.length
    share = (overlap - part) / s.length + (part > 0 and 1 or 0)
  end
  return s.current + share
end
-- sliding_state reads a sliding window. previous and current are the permits granted in two windows. used is the number that is compared
-- with a limit: current, plus the share of previous that lies within the last length ms, rounded up. All of previous counts if the
-- product is not exact. The window with the number index lasts from index * length to (index + 1) * length, in ms of the server's clock.
-- elapsed is the part of it that has passed. current includes owed, the permits of debts that count in the next window too, as if they
-- were granted there, and no longer in this one.
--
-- The form of a state is "index:previous:current:length", with current without owed. If charges can be given back or permits are owed,
-- it ends in "@stamp:owed": an instant, or 0, that tells this state from those of other times and lengths. If only shorter lengths were
-- used in the current window, it ends in "@stamp:owed:1".
--
-- If the length of the state and that of the call differ, the longer one holds. It holds in the last window in which it was used, and in the
-- window after that, where the share of its permits counts. Permits counted by the shorter length count in the current window of the longer
-- one. When the longer length ends, the permits of its last window count as if they were granted in the last ms of that window.
--
-- A window ahead of the clock has not begun, and elapsed is negative: the clock was set back. A window that is ahead by more than its
-- length and a minute counts as none. A number with an unknown suffix that expires is of a later version: the limit is used up until it
-- expires, and length is 0. Any other value that is not in the form is no state.
local function sliding_state(key, value, now, limit, length)
  local longest, most = 315360000000, 4294967295
  local index, previous, current, lasts, stamp, owed, shorter = string.match(value or '', '^(%d+):(%d+):(%d+):(%d+)$')
  if value and not index then
    index, previous, current, lasts, stamp, owed, shorter = string.match(value, '^(%d+):(%d+):(%d+):(%d+)@(%d+):(%d+):?(1?)$')
  end
  if value and not index and string.find(value, '^%d') then
    local left = math.min(redis.call('PTTL', key), longest)
    if left > 0 then
      return {used = limit, previous = 0, current = limit, length = 0, elapsed = -left - 1, stamp = 0, owed = 0}
    end
  end
  index, lasts = tonumber(index or 0), math.max(1, math.min(tonumber(lasts or 1), longest))
  previous, current = math.min(tonumber(previous or 0), most), math.min(tonumber(current or 0), most)
  stamp, owed = tonumber(stamp or 0), math.min(tonumber(owed or 0), most)
  if index * lasts > now + math.max(lasts, length) + 60000 then
    index, previous, current, stamp, owed = 0, 0, 0, 0, 0
  end
  shorter = shorter == '1'
  local until_index = index + (shorter and 1 or 2)
  if lasts > length and now >= until_index * lasts then
    index, previous, lasts = math.floor((until_index * lasts - 1) / length), 0, length
    current, stamp, owed = math.min(shorter and current + owed or owed, most), 0, 0
  end
  local later = math.max(0, math.floor(now / lasts) - index)
  if later > 0 then
    index, previous, current = index + later, later == 1 and current or later == 2 and owed or 0, later == 1 and owed or 0
    stamp, owed = later == 1 and stamp or 0, 0
  end
  shorter = lasts > length and (shorter or later > 0)
  if lasts < length then
    index, previous, current = math.floor(math.max(now, index * lasts) / length), 0, math.min(previous + current + owed, 2 * most)
    lasts, stamp, owed = length, 0, 0
  end
  local s = {previous = previous, current = current + owed, length = lasts, elapsed = now - index * lasts, index = index}
  s.stamp, s.owed, s.shorter, s.used = stamp, owed, shorter, sliding_used(s)
  return s
end
-- sliding_text returns the text of a state, and the ms until none of its permits count.
local function sliding_text(s)
  local text = string.format('%.0f:%.0f:%.0f:%.0f', s.index, s.previous, s.current - s.owed, s.length)
  if s.stamp > 0 or s.owed > 0 or s.shorter then
    text = string.format('%s@%.0f:%.0f%s', text, s.stamp, s.owed, s.shorter and ':1' or '')
  end
  return text, (s.owed > 0 and 3 or 2) * s.length - s.elapsed
end

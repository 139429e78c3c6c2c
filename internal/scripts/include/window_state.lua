-- window_state reads the last window that was opened: how many permits are used, ms until it begins and ends, and how long it is. It is
-- written as "used:length", by earlier versions as "used", and it expires with the window. It returns nothing if there is no window.
-- A window that lasts longer than any that its writer or this call would open counts as none: the clock was set back. A state with
-- something else behind it was written by a later version: the window is used up until it expires. A value that is not a number with a
-- suffix, or that does not expire, is no state.
local function window_state(value, left, limit, length)
  if not value or left <= 0 then
    return nil
  end
  local used, suffix = string.match(value, '^(%d+)(.*)$')
  local lasts = string.match(suffix or '', '^:(%d+)$')
  if not used then
    return nil
  elseif not lasts and suffix ~= '' then
    return limit, 0, left, length
  end
  lasts = math.min(tonumber(lasts) or length, 315360000000)
  if left <= 2 * math.max(lasts, length) + 1000 then
    return tonumber(used), math.max(0, left - lasts), left, lasts
  end
end

-- window_state reads the last window that was opened. It returns the used permits, the ms until the window begins and until it ends, its
-- length and its stamp, or nothing if there is no window. The form of a state is "used:length", or "used" by earlier versions. It
-- expires with the window. If charges of the window can be given back, it ends in "@stamp", an instant that tells this window from all
-- others. A window that lasts longer than any that its writer or this call would open counts as none: the clock was set back. A number
-- with an unknown suffix that expires is of a later version: the window is used up until it expires, and its stamp is 0. Any other
-- value that is not in the form is no state.
local function window_state(value, left, limit, length)
  if not value or left <= 0 then
    return nil
  end
  local used, suffix = string.match(value, '^(%d+)(.*)$')
  local lasts, stamp = string.match(suffix or '', '^:(%d+)$'), nil
  if not used then
    return nil
  elseif not lasts and suffix ~= '' then
    lasts, stamp = string.match(suffix, '^:(%d+)@(%d+)$')
    if not lasts then
      return limit, 0, left, length, 0
    end
  end
  lasts = math.min(tonumber(lasts) or length, 315360000000)
  if left <= 2 * math.max(lasts, length) + 1000 then
    return tonumber(used), math.max(0, left - lasts), left, lasts, tonumber(stamp)
  end
end
-- window_text returns the text of a state. stamp may be nil.
local function window_text(used, lasts, stamp)
  return string.format(stamp and '%.0f:%.0f@%.0f' or '%.0f:%.0f', used, lasts, stamp)
end

-- window_state reads the last window that was opened. It returns the used permits, the ms until the window begins and until it ends, and
-- its length, or nothing if there is no window. The form of a state is "used:length", or "used" by earlier versions. It expires with the
-- window. A window that lasts longer than any that its writer or this call would open counts as none: the clock was set back. A number
-- with an unknown suffix that expires is of a later version: the window is used up until it expires. Any other value that is not in the
-- form is no state.
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

-- window_state reads the last window that was begun: how many permits are used, ms until it begins and ends, and how long it is. It is
-- written as "used:length", and it expires with the window. A window that lasts longer than any that its writer or this call would begin
-- counts as none, and so does what is no window.
local function window_state(value, left, length)
  local used, of = string.match(value or '', '^(%d+):?(%d*)$')
  of = math.min(tonumber(of) or length, 315360000000)
  if used and left > 0 and left <= 2 * math.max(of, length) + 1000 then
    return tonumber(used), math.max(0, left - of), left, of
  end
end

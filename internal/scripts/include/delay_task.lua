-- A task is "first:length/attempts:headers payload" without the space: the instant at which it was first scheduled, if that bounds its
-- delay, the length of the headers, and how often it is attempted at most, each empty if there is none; so is the stroke.

-- attempt_of reads an attempt: "failures:losses:token". While the task is in running, "@" and the instant at which it was due follow. There
-- may be a mark at the end. ":x" says that the task was cancelled while it ran, and ":" that its lease was lost and nothing has happened to
-- it since. "!" and the error of its handler say that it has failed. A task that was never claimed has no attempt.
local function attempt_of(value)
  if not value then
    return 0, 0, '0', false, false, ''
  end
  local failures, losses, token, due, mark = string.match(value, '^(%d+):(%d+):(%d+)@?(%d*)(.*)$')
  return tonumber(failures or 0), tonumber(losses or 0), token or '0', mark == ':x', mark == ':', mark or '', tonumber(due or '')
end

local function instant(us)
  return string.format('%.0f', us)
end

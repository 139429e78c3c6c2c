-- A task is "first:length:headers payload" without the space: the instant at which it was first scheduled, if that bounds its delay, and
-- the length of the headers, each empty if there is none.

-- first_of returns the instant at which a task was first scheduled, or nil.
local function first_of(task)
  return tonumber(string.match(task, '^(%d*):'))
end

-- An attempt is "failures:losses:token", and ":x" if the task was cancelled while it ran. A task that was never claimed has none.
local function attempt_of(attempts_key, id)
  local value = redis.call('HGET', attempts_key, id)
  local failures, losses, token, cancelled = string.match(value or '', '^(%d+):(%d+):(%d+)(:?x?)$')
  return tonumber(failures or 0), tonumber(losses or 0), token or '0', cancelled == ':x'
end

local function instant(us)
  return string.format('%.0f', us)
end

-- The line of a semaphore has the processes that are woken one after the other (zset: waiter -> the instant, ms, at which the first of its
-- requests came, and as thousandths the permits that it wants, at most 999). A waiter is the id of its client, a colon and a number, and
-- hears of its turn on the channel of that client: the ms after which to ask, a blank, and the waiter.
-- A client that begins with '*' may hear even if nobody seems to: in some deployments nobody can count who does.
--
-- A waiter that was woken leaves the line, and the permits that it wants are kept for it for 50 ms (string: per waiter until when, ms, how
-- many, how many it wants, and the waiter). What it wants and becomes free meanwhile is not given to others. All of it stays in the number of
-- free permits: what is kept is only not granted to callers that come later. So Redisson, versions without a line and the end of a process
-- cannot lose or gain a permit by it.
--
-- Neither is a key of the calls, so that a release succeeds while its slot migrates: what Redis refuses here costs waiters the time until
-- their next poll, and nothing else.
--
-- A fair semaphore has a channel and keys of its own, and nobody overtakes its line. If more than one request of a process waits, its
-- thousandths are greater by 500.

-- line_keys returns the two keys, and whether the semaphore is fair.
local function line_keys(channel)
  local colon = string.find(channel, ':', 1, true) or #channel
  local name = string.sub(channel, colon + 1)
  if colon == 14 and string.sub(channel, 1, 14) == 'cogwheel_fair:' then
    return name .. ':fair:waiting', name .. ':fair:kept', true
  end
  return name .. ':waiting', name .. ':kept', false
end

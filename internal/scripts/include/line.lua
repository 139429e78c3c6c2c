-- The line of a fair lock. A place in it stands in three keys: queue (list: ids in order of arrival), timeouts (zset: id -> the
-- instant, ms, from which Redisson counts it as gone) and alive (zset: id -> the instant until which a waiter of this library
-- counts as alive without asking again). Redisson's waiters have no entry in alive.

-- counts_until is the instant at which a place is given up, 0 if it is already.
local function counts_until(place)
  local timeout = tonumber(redis.call('ZSCORE', timeouts, place) or 0)
  return math.min(timeout, tonumber(redis.call('ZSCORE', alive, place) or timeout))
end

-- drop_places takes the places out of the line that were given up and now come first, up to that of the id. It returns the first that
-- is left, if there is one, the instant until which it counts, and whether any was dropped. The queue goes last: what is cut off in
-- between is a place without a timeout, which is dropped next time.
local function drop_places(now, id)
  local dropped = false
  while true do
    local head = redis.call('LINDEX', queue, 0)
    local instant = head and counts_until(head)
    if not head or head == id or instant > now then
      return head, instant, dropped
    end
    redis.call('ZREM', alive, head)
    redis.call('ZREM', timeouts, head)
    redis.call('LPOP', queue, 1)
    dropped = true
  end
end

-- shorten_timeouts brings Redisson's timeouts forward when a place before them has gone, as Redisson does. Waiters of this library set
-- theirs anew with each look, so that a line of them alone costs nothing here.
local function shorten_timeouts(behind, wait_ms)
  pcall(function() -- what fails here costs Redisson's waiters some patience with dead ones
    if redis.call('ZCARD', timeouts) > redis.call('ZCARD', alive) then
      for _, place in ipairs(redis.call('ZRANGEBYSCORE', timeouts, '(' .. behind, '+inf')) do
        redis.call('ZINCRBY', timeouts, -wait_ms, place)
      end
    end
  end)
end

-- The queue of a fair lock. A waiter has an entry in each of three keys: queue (list: ids in order of arrival), timeouts
-- (zset: id -> the instant, ms, from which Redisson counts it as gone) and alive (zset: id -> the instant, ms, until which a
-- waiter of this library counts as alive without another query). Redisson's waiters have no entry in alive.

-- find_dead reads the queue from its start, up to the id `stop`, and ignores the id `skip`. It returns
--   dead: the ids of the dead waiters at the start of the queue;
--   head: the first waiter behind them, or false, and the instant until which it counts as alive.
-- dead also has each id as a key, and the numbers of entries of dead waiters in the other two keys: in_timeouts, in_alive.
local function find_dead(now, stop, skip)
  local dead, rank = {in_timeouts = 0, in_alive = 0}, 0
  while true do
    local place = redis.call('LINDEX', queue, rank)
    rank = rank + 1
    if not place or place == stop then
      return dead, place, 0
    end
    if place ~= skip then
      local timeout, lives = redis.call('ZSCORE', timeouts, place), redis.call('ZSCORE', alive, place)
      local counts_until = math.min(tonumber(timeout or 0), tonumber(lives or timeout or 0))
      if counts_until > now then
        return dead, place, counts_until
      end
      dead[#dead + 1], dead[place] = place, true
      dead.in_timeouts = dead.in_timeouts + (timeout and 1 or 0)
      dead.in_alive = dead.in_alive + (lives and 1 or 0)
    end
  end
end

-- remove_first removes waiters from the start of the queue. It changes the list last: if it stops in between, the waiters that
-- are left in the list have no timeout and count as dead. A script calls it after all other uses of the queue: while a slot of
-- a cluster migrates, Redis refuses a key that the script has emptied.
local function remove_first(places)
  for from = 1, #places, 1000 do
    local last = math.min(from + 999, #places)
    redis.pcall('ZREM', alive, unpack(places, from, last))
    redis.pcall('ZREM', timeouts, unpack(places, from, last))
  end
  if #places > 0 then
    redis.call('LPOP', queue, #places)
  end
end

-- shorten_timeouts reduces the timeouts of the waiters behind one that leaves, as Redisson does. Waiters of this library set their
-- timeouts with each query, so a queue without Redisson's waiters costs nothing here.
local function shorten_timeouts(behind, wait_ms)
  pcall(function() -- if this fails, Redisson's waiters wait longer for dead ones
    if redis.call('ZCARD', timeouts) > redis.call('ZCARD', alive) then
      for _, place in ipairs(redis.call('ZRANGEBYSCORE', timeouts, '(' .. behind, '+inf')) do
        redis.call('ZINCRBY', timeouts, -wait_ms, place)
      end
    end
  end)
end

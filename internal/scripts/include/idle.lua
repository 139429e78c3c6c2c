-- With an idle expiry, all keys of the semaphore expire idle_ms after its last use or after the end of its last lease,
-- whichever is later. So a holder that died does not keep them for longer. last_end is the end of the last lease, ms. The
-- PEXPIRE covers the present leases, and proves that Redis will not refuse a later PEXPIRE.
local last_end, life = now, nil
if idle_ms > 0 then
  -- life returns the expiry of a key, ms from now, if the last lease ends at the instant.
  life = function(instant)
    return math.ceil(math.max(instant - now, 0)) + idle_ms
  end
  last_end = math.max(now, tonumber(redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2] or now))
  redis.call('PEXPIRE', leases, life(last_end))
end

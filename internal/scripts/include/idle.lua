-- With an idle expiry, every key of the semaphore expires that time after its last use, and no earlier than that time
-- after the last lease ends. A holder that died so keeps no key for longer. last_end is the end of the last lease, ms.
-- The PEXPIRE covers all leases there are, and proves that later ones will not be refused.
local last_end, life = now, nil
if idle_ms > 0 then
  -- life is how long a key lasts, ms, of which the last lease ends at the instant.
  life = function(instant)
    return math.ceil(math.max(instant - now, 0)) + idle_ms
  end
  last_end = math.max(now, tonumber(redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2] or now))
  redis.call('PEXPIRE', leases, life(last_end))
end

-- over is how many permits have a lease that is over. If there are any, a call that changes nothing proves that they can be taken back
-- after the first write.
local over = redis.call('ZCOUNT', leases, '-inf', now)
if over > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, 1, 0)
end

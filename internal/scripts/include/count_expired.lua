-- expired is the number of permits whose lease has ended. If there are any, a call that changes nothing proves that Redis
-- will not refuse their removal after the first write.
local expired = redis.call('ZCOUNT', leases, '-inf', now)
if expired > 0 then
  redis.call('ZREMRANGEBYSCORE', leases, 1, 0)
end

--[[
Takes plain locks that are free, each as lock_acquire does. A lock that is neither free nor held by another id is left to
lock_acquire.

KEYS     the names (each a hash: id -> 1)
ARGV     1 lease, ms   and for each name   id
Returns  for each name   1 and 0 if it was free and the id holds it now;
         0 and the ms to the holder's expiry, or -1, if another does;
         2 and 0 if lock_acquire has to be called: nothing was done
Errors   ERR a lease is not an integer from 1 to 2^53; an error of Redis that concerns all locks: the locks before it are held
]]
local lease, reply = ARGV[1], {}
-- include: check_lease
for i, name in ipairs(KEYS) do
  local id = ARGV[i + 1]
  local outcome, left = 2, 0
  local fields = redis.pcall('HLEN', name)
  if fields == 0 then
    redis.call('PEXPIRE', name, lease) -- changes nothing: it proves that the lock will not be left without an expiry
    redis.call('HSET', name, id, '0')
    redis.call('PEXPIRE', name, lease)
    outcome = 1
  elseif type(fields) == 'table' then
    -- A key of another type concerns one lock. Any other error concerns all.
    if not string.find(fields.err, 'WRONGTYPE', 1, true) then
      return fields
    end
  else
    local found, pttl = redis.pcall('HMGET', name, 'mode', id), redis.pcall('PTTL', name)
    if not found.err and not found[1] and not found[2] and type(pttl) == 'number' then
      outcome, left = 0, pttl
    end
  end
  reply[2 * i - 1], reply[2 * i] = outcome, left
end
return reply

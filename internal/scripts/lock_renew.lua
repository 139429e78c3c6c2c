--[[
Renews plain locks, fair locks and writers, each with its own lease. It never shortens a lease: the holder may rely on a longer one,
and calls may overtake each other.

KEYS     the names (each a hash: id -> 1)
ARGV     for each name   id   lease, ms
Returns  for each name   1 held for the lease or longer, 0 not held by the id
]]
local held = {}
for i, name in ipairs(KEYS) do
  local id, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- include: check_lease
  local own = redis.pcall('HEXISTS', name, id)
  if type(own) == 'table' then
    -- A key of another type means that this lock is lost. It does not fail the others.
    if not string.find(own.err, 'WRONGTYPE', 1, true) then
      return own
    end
    own = 0
  end
  if own == 1 and redis.call('PTTL', name) < lease_ms then
    redis.call('PEXPIRE', name, lease)
  end
  held[i] = own
end
return held

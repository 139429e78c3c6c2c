--[[
Renews string locks, each with its own lease. It never shortens a lease: the holder may rely on a longer one, and calls may overtake
each other.

KEYS     the names (each a string: the id of the holder)
ARGV     for each name   id   lease, ms
Returns  for each name   1 held for the lease or longer, 0 not held by the id
]]
local held = {}
for i, name in ipairs(KEYS) do
  local id, lease = ARGV[2 * i - 1], ARGV[2 * i]
  -- include: check_lease
  local holder = redis.pcall('GET', name)
  -- A key of another type means that this lock is lost. It does not fail the others.
  if type(holder) == 'table' and not string.find(holder.err, 'WRONGTYPE', 1, true) then
    return holder
  end
  if holder == id and redis.call('PTTL', name) < lease_ms then
    redis.call('PEXPIRE', name, lease)
  end
  held[i] = holder == id and 1 or 0
end
return held

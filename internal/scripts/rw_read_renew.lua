--[[
Renews readers of read/write locks, each with its own lease. It never shortens a lease.

KEYS     for each reader   the name (hash: mode -> read or write, id -> 1)   its timeout (string that lives as long as its lease)
ARGV     for each reader   id   lease, ms
Returns  for each reader   1 held for the lease or longer, 0 not held by the id
]]
for i = 2, #ARGV, 2 do
  local lease = ARGV[i]
  -- include: check_lease
end

-- renew sets both expiries, or neither.
local function renew(name, timeout, lease)
  local lease_ms = tonumber(lease)
  local left, own_left = redis.call('PTTL', name), redis.call('PTTL', timeout)
  if own_left < lease_ms and redis.call('PEXPIRE', timeout, lease) == 0 then -- a server at its memory limit refuses SET as the first write
    redis.call('SET', timeout, 1, 'PX', lease)
  end
  if left == -1 or left >= lease_ms then
    return
  end
  local set = redis.pcall('PEXPIRE', name, lease)
  if type(set) == 'table' then
    if own_left < lease_ms then
      redis.call('SET', timeout, 1, 'PX', math.max(own_left, 1))
    end
    return set
  end
end

local held = {}
for i = 1, #KEYS, 2 do
  local name, timeout, id, lease = KEYS[i], KEYS[i + 1], ARGV[i], ARGV[i + 1]
  local own = redis.pcall('HEXISTS', name, id)
  if type(own) == 'table' then
    -- A key of another type means that this lock is lost. It does not fail the others.
    if not string.find(own.err, 'WRONGTYPE', 1, true) then
      return own
    end
    own = 0
  end
  local refusal = own == 1 and renew(name, timeout, lease)
  if refusal then
    return refusal
  end
  held[#held + 1] = own
end
return held

--[[
Ends a reader's hold of a read/write lock. The last reader wakes waiters. Otherwise the hash stays for the longest lease of the other
readers, and readers whose lease has ended are removed.

KEYS     1 name (hash: mode -> read or write, id -> 1)   2 the reader's timeout (string that lives as long as its lease)
ARGV     1 id   2 PUBLISH or SPUBLISH   3 channel   4 prefix of the timeouts of all readers of the lock
Returns  1 released, or 3: see yields in wake_first; 0 the id does not hold it
]]
local name, timeout = KEYS[1], KEYS[2]
local id, verb, channel, timeouts = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- A lease that was read may be shorter than the expiry of the hash by clock_drift: Redis' clock goes on within a script.
local clock_drift = 100

local found = redis.call('HMGET', name, 'mode', id)
if not found[2] then
  return 0
end
local readers = redis.call('HLEN', name) - 1
if found[1] == 'read' and readers == 1 then
  redis.call('DEL', name, timeout)
  -- include: line
  local ready_in, read_write, followers, nobody = 0, true, 1, false
  -- include: wake_first
  -- include: keep_in_hash
  return 1 + yields
end

-- lease_of returns the remaining lease of a reader, or 0 if it has ended. It returns nil if the lease is not known: the timeout has lost
-- its expiry, or is on another node, because it is not among KEYS. While a slot of a cluster migrates, its new node answers a command of
-- one key as if a key on the old node did not exist, but refuses a command of two keys.
local function lease_of(reader, n)
  local key = timeouts .. ':' .. reader .. ':rwlock_timeout:' .. n
  local left = redis.pcall('PTTL', key)
  if left == -2 and type(redis.pcall('EXISTS', name, key)) ~= 'number' then
    return nil
  end
  if type(left) == 'number' and left ~= -1 then
    return math.max(left, 0)
  end
end

-- another_has_longest reports whether one of a few random readers has the longest lease, so that the expiry of the hash is right. Readers
-- with equal leases are common, so among many readers such a one is found soon.
local function another_has_longest(left)
  for _, reader in ipairs(redis.call('HRANDFIELD', name, 8)) do
    local lease = reader ~= id and reader ~= 'mode' and lease_of(reader, 1)
    if lease and lease > 0 and lease + clock_drift >= left then
      return true
    end
  end
  return false
end

-- read_all returns the longest lease of the other readers, or nil if one is not known, and the readers without a lease.
local function read_all()
  local fields, longest, dead = redis.call('HGETALL', name), 0, {}
  for i = 1, #fields, 2 do
    local reader, holds = fields[i], tonumber(fields[i + 1])
    if reader ~= 'mode' and reader ~= id then
      local lease = 0
      for n = 1, holds or 1 do -- Redisson counts the re-entries of a reader, each with a timeout
        local left = lease_of(reader, n)
        if not left then
          return nil, {}
        end
        lease = math.max(lease, left)
      end
      if lease == 0 then
        dead[#dead + 1] = reader
      end
      longest = math.max(longest, lease)
    end
  end
  return longest, dead
end

local left, own_left = redis.call('PTTL', name), redis.call('PTTL', timeout)
local longest, dead = nil, {}
-- If the writer reads too, or another reader has the longest lease, only the reader itself is removed.
if found[1] == 'read' and left ~= -1 and own_left + clock_drift >= left then
  if readers <= 16 or not another_has_longest(left) then
    longest, dead = read_all()
  end
end
if longest == 0 then
  redis.call('DEL', name, timeout)
  -- include: line
  local ready_in, read_write, followers, nobody = 0, true, 1, false
  -- include: wake_first
  -- include: keep_in_hash
  return 1 + yields
end

-- The first PEXPIRE changes nothing, and proves the right to the later ones. If Redis refuses it or HDEL, nothing has changed.
redis.call('PEXPIRE', timeout, math.max(own_left, 1))
dead[#dead + 1] = id
for i = 1, #dead, 1000 do
  redis.call('HDEL', name, unpack(dead, i, math.min(i + 999, #dead)))
end
redis.call('PEXPIRE', timeout, 0)
if longest then
  redis.call('PEXPIRE', name, longest)
  if longest + clock_drift < left then -- the waiter that is first knows a later end, which counts if the other readers are dead
    -- include: line
    local ready_in = longest
    -- include: tell_first
  end
end
return 1

--[[
Releases one leased permit of each of several semaphores, as permit_release does. A release for permits that were never set
is left to permit_release.

KEYS     for each release   permits and leases, as those of permit_release
ARGV     for each release   those of permit_release for one id: 5
Returns  for each release   1 released, or 3 if the waiter is to ask; 0 it was not held; 2 if permit_release has to be called: nothing
         was done
]]
local keys_each, args_each = 2, 5
-- include: refusal
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters

-- release returns the outcome, and the error if it concerns all calls.
local function release(permits, leases, verb, channel, own, id)
  local stored = redis.pcall('GET', permits)
  local free = type(stored) == 'string' and string.match(stored, '^-?%d+$') and tonumber(stored)
  if not free or free > 2^53 or free < -2^53 then
    return 2, refusal(stored)
  end
  local set = redis.pcall('SET', permits, free + 1, 'KEEPTTL') -- first, as in permit_release
  if set.err then -- as there
    local proof = redis.pcall('ZREM', leases, '')
    set = proof == 0 and redis.pcall('SET', permits, free + 1, 'KEEPTTL') or set
    if set.err then
      return 2, refusal(set)
    end
  end
  local removed = redis.pcall('ZREM', leases, id)
  if removed ~= 1 then
    redis.call('SET', permits, stored, 'KEEPTTL')
    return removed == 0 and 0 or 2, refusal(removed)
  end
  return 1 + wake_waiters(verb, channel, free + 1, own)
end

local reply, any_released = {}, false
for i = 0, #KEYS / keys_each - 1 do
  local k, a = i * keys_each, i * args_each
  local verb, channel, own, idle_ms, id = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  local outcome, refused = 2, nil
  if own ~= '1' and idle_ms == '0' then
    outcome, refused = release(KEYS[k + 1], KEYS[k + 2], verb, channel, own, id)
  end
  if refused and not any_released then
    return refused
  end
  any_released = any_released or outcome % 2 == 1
  reply[i + 1] = outcome
end
return reply

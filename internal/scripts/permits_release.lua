--[[
Releases one leased permit of each of several semaphores, as permit_release does. A release for permits that were never set
is left to permit_release.

KEYS     for each release   permits and leases, as those of permit_release
ARGV     1 PUBLISH or SPUBLISH   2 idle expiry, ms, or 0   and for each release   the other arguments of permit_release for one id: 3
Returns  for each release   1 released, or 3 if the waiter is to ask; 0 it was not held; 2 if permit_release has to be called: nothing
         was done
]]
local verb, idle_ms = ARGV[1], ARGV[2]
-- include: refusal
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters

local lines = {nil}
for i = 3, #ARGV, 3 do
  lines[#lines + 1] = line_keys(ARGV[i])
end
local nobody = redis.pcall('EXISTS', unpack(lines)) == 0 -- mostly nobody waits for any of them

-- release returns the outcome, and the error if it concerns all calls.
local function release(permits, leases, channel, own, id)
  local stored = redis.pcall('GET', permits)
  local free = type(stored) == 'string' and string.match(stored, '^-?%d+$') and tonumber(stored)
  if not free or free > 2^53 or free < -2^53 then
    return 2, refusal(stored)
  end
  local text = string.format('%d', free + 1)
  local set = redis.pcall('SET', permits, text, 'KEEPTTL') -- first, as in permit_release
  if set.err then -- as there
    local proof = redis.pcall('ZREM', leases, '')
    set = proof == 0 and redis.pcall('SET', permits, text, 'KEEPTTL') or set
    if set.err then
      return 2, refusal(set)
    end
  end
  local removed = redis.pcall('ZREM', leases, id)
  if removed ~= 1 then
    redis.call('SET', permits, stored, 'KEEPTTL')
    return removed == 0 and 0 or 2, refusal(removed)
  end
  return 1 + wake_waiters(verb, channel, free + 1, own, nobody)
end

local reply, any_released = {}, false
for i = 0, #KEYS / 2 - 1 do
  local channel, own, id = ARGV[3 * i + 3], ARGV[3 * i + 4], ARGV[3 * i + 5]
  local outcome, refused = 2, nil
  if own ~= '1' and idle_ms == '0' then
    outcome, refused = release(KEYS[2 * i + 1], KEYS[2 * i + 2], channel, own, id)
  end
  if refused and not any_released then
    return refused
  end
  any_released = any_released or outcome % 2 == 1
  reply[i + 1] = outcome
end
return reply

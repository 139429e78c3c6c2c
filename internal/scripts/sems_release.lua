--[[
Releases permits of several counting semaphores, as sem_release does for one release that is no repeated call. One that creates the
semaphore, or adds nothing, is left to sem_release.

KEYS     for each release   permits and sequence key, as those of sem_release
ARGV     1 expiry of the sequence keys, ms   2 PUBLISH or SPUBLISH   3 idle expiry, ms, or 0
         4 1 to add only if the semaphore exists else 0: it makes no difference here
         5 maximum of free permits or 0   and for each release   channel   the waiter of the process, or empty   sequence number   permits
Returns  for each release   1 added, or 3 if the waiter is to ask; 2 if sem_release has to be called: nothing was done
]]
local sequence_key_ms, verb, idle_ms, maximum = ARGV[1], ARGV[2], ARGV[3], ARGV[5] + 0
-- include: refusal
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters

local lines = {nil}
for i = 6, #ARGV, 4 do
  lines[#lines + 1] = line_keys(ARGV[i])
end
local nobody = redis.pcall('EXISTS', unpack(lines)) == 0 -- mostly nobody waits for any of them

-- release returns the outcome, and the error if it concerns all calls.
local function release(permits, sequence_key, channel, own, seq, n)
  local stored, last_call = redis.pcall('GET', permits), redis.pcall('GET', sequence_key) or '0'
  local free = type(stored) == 'string' and string.match(stored, '^-?%d+$') and tonumber(stored)
  local last = type(last_call) == 'string' and tonumber(string.match(last_call, '^%d+'))
  if not free or free > 2^53 or free < -2^53 or not last or last >= tonumber(seq) or n < 1 or maximum > 0 and free + n > maximum then
    return 2, refusal(stored) or refusal(last_call)
  end
  local text = string.format('%d', free + n)
  local set = redis.pcall('SET', permits, text, 'KEEPTTL')
  if set.err then -- as in sem_release
    redis.pcall('PEXPIRE', sequence_key, sequence_key_ms)
    set = redis.pcall('SET', permits, text, 'KEEPTTL')
  end
  if set.err then
    return 2, refusal(set)
  end
  set = redis.pcall('SET', sequence_key, seq, 'PX', sequence_key_ms)
  if set.err then
    redis.call('SET', permits, stored, 'KEEPTTL')
    return 2, refusal(set)
  end
  return 1 + wake_waiters(verb, channel, free + n, own, nobody)
end

local reply, any_released = {}, false
for i = 0, #KEYS / 2 - 1 do
  local a, outcome, refused = 5 + 4 * i, 2, nil
  if idle_ms == '0' then
    outcome, refused = release(KEYS[2 * i + 1], KEYS[2 * i + 2], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4] + 0)
  end
  if refused and not any_released then
    return refused
  end
  any_released = any_released or outcome ~= 2
  reply[i + 1] = outcome
end
return reply

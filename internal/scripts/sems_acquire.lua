--[[
Acquires permits of several counting semaphores, as sem_acquire does for one request that is no repeated call. A request
that cannot be granted at once is left to sem_acquire.

KEYS     for each request   permits and sequence key, as those of sem_acquire
ARGV     1 expiry of the sequence keys, ms   2 PUBLISH or SPUBLISH   3 idle expiry, ms, or 0   4 to wait in the line, else empty
         and for each request   sequence number   that of the last confirmed call   channel   permits
Returns  for each request   1, 1, free permits and -1 if it was granted; 2 and three zeros if sem_acquire has to be called: nothing was
         done
]]
local sequence_key_ms, idle_ms, in_line = ARGV[1], ARGV[3], ARGV[4]
-- include: refusal
-- include: permit_line

-- take takes permits and returns how many are left. If it takes none, it leaves everything as it was, and returns the error if the
-- error concerns all calls.
local function take(permits, sequence_key, seq, confirmed, channel, wanted)
  -- include: read_with_kept
  local last_call = redis.pcall('GET', sequence_key) or '0 0 0'
  local last = type(last_call) == 'string' and tonumber(string.match(last_call, '^(%d+) %d+ %d+$'))
  local free = type(stored) == 'string' and string.match(stored, '^%d+$') and tonumber(stored)
  if not last or last > confirmed or not free or free > 2^53 or wanted > free or fair or type(record) == 'string' then
    return nil, refusal(stored) or refusal(last_call)
  end
  local set = redis.pcall('SET', permits, string.format('%d', free - wanted), 'KEEPTTL')
  if set.err then
    return nil, refusal(set)
  end
  set = redis.pcall('SET', sequence_key, string.format('%s 1 %d', seq, wanted), 'PX', sequence_key_ms)
  if set.err then
    redis.call('SET', permits, stored, 'KEEPTTL')
    return nil, refusal(set)
  end
  return free - wanted
end

local reply, any_granted = {}, false
for i = 0, #KEYS / 2 - 1 do
  local a, r, left, refused = 4 + 4 * i, 4 * i, nil, nil
  if idle_ms == '0' and in_line == '' then
    left, refused = take(KEYS[2 * i + 1], KEYS[2 * i + 2], ARGV[a + 1], ARGV[a + 2] + 0, ARGV[a + 3], ARGV[a + 4] + 0)
  end
  if refused and not any_granted then
    return refused
  end
  if left then
    any_granted, reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = true, 1, 1, left, -1
  else
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = 2, 0, 0, 0
  end
end
return reply

--[[
Acquires one leased permit of each of several semaphores, as permit_acquire does. A request that cannot be granted at once
is left to permit_acquire.

KEYS     for each request   permits, leases and fence, as those of permit_acquire
ARGV     those of permit_acquire for one request of one permit, but channel and id, 8, and for each request   channel   id
Returns  for each request   1, free, held, -1 and its token if it was granted, where free and held are 0 unless the number of
         permits is declared; 2 and four zeros if permit_acquire has to be called: nothing was done
]]
local keys_each = 4
local fence_ms, idle_ms, declared, in_line, lease, permits = ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
-- include: read_clock
-- include: refusal
-- include: permit_line
-- include: tokens

-- take takes a permit and returns the reply. If it takes none, it leaves everything as it was, and returns the error if the
-- error concerns all calls.
local function take(permits, leases, fence, channel, id)
  -- include: read_with_kept
  if type(record) == 'string' or fair and redis.pcall('ZCARD', line) ~= 0 then -- some may be for waiters
    return nil
  end
  local expiry = redis.pcall('PTTL', permits)
  local held = declared ~= '0' and redis.pcall('ZCARD', leases) or 0
  local free = type(stored) == 'string' and string.match(stored, '^%d+$') and tonumber(stored)
  if not free or free < 1 or free > 2^53 or type(expiry) ~= 'number' or type(held) ~= 'number' then
    return nil, refusal(stored) or refusal(expiry) or refusal(held)
  end
  local last, stored_token = reserve_tokens(fence, 1) -- as in permit_acquire, the SETs come first
  if not last then
    return nil, stored_token and refusal(stored_token)
  end
  redis.call('SET', permits, string.format('%d', free - 1), 'KEEPTTL')
  local added = redis.pcall('ZADD', leases, 'GT', string.format('%d', now + lease), id)
  if added ~= 1 then -- refused, or an earlier execution has taken it
    redis.call('SET', permits, stored, 'KEEPTTL')
    return_tokens(fence, stored_token)
    return nil, refusal(added)
  end
  local token = keep_tokens(fence, 1, last, fence_ms) + 1
  if expiry > 0 then
    redis.pcall('PEXPIRE', leases, expiry)
  end
  if declared == '0' then
    return {1, 0, 0, -1, token}
  end
  return {1, free - 1, held + 1, -1, token}
end

local reply, any_granted = {}, false
for i = 0, #KEYS / keys_each - 1 do
  local k, granted, refused = i * keys_each, nil, nil
  if idle_ms == '0' and permits == '1' and in_line == '' then
    granted, refused = take(KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], ARGV[9 + 2 * i], ARGV[10 + 2 * i])
  end
  if refused and not any_granted then
    return refused
  end
  any_granted = any_granted or granted ~= nil
  local outcome = granted or {2, 0, 0, 0, 0}
  for j = 1, #outcome do
    reply[#reply + 1] = outcome[j]
  end
end
return reply

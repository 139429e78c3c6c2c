--[[
Acquires one leased permit of each of several semaphores, as permit_acquire does. What is not granted at once is left to
permit_acquire.

KEYS     for each request   permits, leases and fence, as those of permit_acquire
ARGV     for each request   those of permit_acquire for one request of one permit: 8
Returns  for each request   1, 0, 0, -1 and its token if it was granted; 2 and four zeros if permit_acquire has to be called:
         nothing was done
]]
local keys_each, args_each = 3, 8
-- include: read_clock
-- include: refusal

-- take returns the token of a permit. If there is none, it leaves everything as it was, and returns the error of what was
-- refused to all calls, if anything was.
local function take(permits, leases, fence, fence_ms, lease, id)
  local stored, expiry = redis.pcall('GET', permits), redis.pcall('PTTL', permits)
  local free = type(stored) == 'string' and string.match(stored, '^%d+$') and tonumber(stored)
  if not free or free < 1 or free > 2^53 or type(expiry) ~= 'number' then
    return nil, refusal(stored) or refusal(expiry)
  end
  -- As in permit_acquire, the SETs come first, and the first of them also reads the last token.
  local before = clock - 1
  local last = redis.pcall('SET', fence, before + 1, 'KEEPTTL', 'GET')
  if type(last) == 'table' then
    return nil, refusal(last)
  end
  local last_token = not last and 0 or string.match(last, '^%d+$') and tonumber(last)
  local added
  if last_token and last_token < 2^53 then
    redis.call('SET', permits, free - 1, 'KEEPTTL')
    added = redis.pcall('ZADD', leases, 'GT', now + lease, id)
    if added ~= 1 then -- refused, or an earlier execution has taken it
      redis.call('SET', permits, stored, 'KEEPTTL')
    end
  end
  if added ~= 1 then
    if last then
      redis.call('SET', fence, last, 'KEEPTTL')
    else
      redis.call('SET', fence, 0, 'PX', 1)
    end
    return nil, refusal(added)
  end
  local hour = 3600000000
  if last_token > before or math.floor(last_token / hour) ~= math.floor(clock / hour) then
    before = math.max(before, last_token)
    redis.call('SET', fence, before + 1, 'PX', fence_ms)
  end
  if expiry > 0 then
    redis.pcall('PEXPIRE', leases, expiry)
  end
  return before + 1
end

local reply = {}
for i = 0, #KEYS / keys_each - 1 do
  local k, a = i * keys_each, i * args_each
  local fence_ms, idle_ms, lease, permits, id = ARGV[a + 3], ARGV[a + 4], ARGV[a + 6], ARGV[a + 7], ARGV[a + 8]
  local token, refused
  if idle_ms == '0' and permits == '1' then
    token, refused = take(KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], fence_ms, lease, id)
  end
  if refused then
    return refused
  end
  local outcome = token and {1, 0, 0, -1, token} or {2, 0, 0, 0, 0}
  for j = 1, #outcome do
    reply[#reply + 1] = outcome[j]
  end
end
return reply

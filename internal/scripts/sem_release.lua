--[[
Releases permits of a counting semaphore. A sequence key per process identifies releases: a repeated one finds
its result there and adds nothing.

KEYS     1 permits (string: free permits)
         2 sequence key of the process (string: "seq" of its last release, and " seq:result" for each of that call that added nothing)
         3 origin (string: see sem_acquire), with an idle expiry
ARGV     1 expiry of the sequence key, ms   2 PUBLISH or SPUBLISH   3 channel   4 idle expiry, ms, or 0
         5 the waiter of the process that releases, or empty: see wake_waiters
         and per release   sequence number   permits   1 to add only if the semaphore exists else 0
         maximum of free permits or 0
Returns  per release   1 added, 0 no semaphore, -1 above the maximum; 3 in place of the first 1 if the waiter is to ask: because
         it was woken, or may have been by an earlier execution
Errors   WRONGKIND the key holds no number
]]
local permits, sequence_key, origin = KEYS[1], KEYS[2], KEYS[3]
local sequence_key_ms, verb, channel, idle_ms, own = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local first_release = 6
-- include: permit_line
-- include: kept_permits
-- include: wake_waiters

-- include: read_permits
-- include: check_permits
local last_call = redis.call('GET', sequence_key) or '0'
local last = tonumber(string.match(last_call, '^%d+'))
if not last then
  return redis.error_reply('WRONGKIND the process key holds no call')
end

local results, entries = {}, {}
local exists, added, latest = stored and true, 0, last
for i = first_release, #ARGV, 4 do
  local seq, n, maximum, result = ARGV[i] + 0, ARGV[i + 1] + 0, ARGV[i + 3], 1
  if seq <= last then
    result = tonumber(string.match(last_call, ' ' .. ARGV[i] .. ':(-?%d)') or 1) -- executed before, and its reply lost
  elseif not exists and ARGV[i + 2] == '1' then
    result = 0
  elseif maximum ~= '0' and free + added + n > tonumber(maximum) then
    result = -1
  else
    added, exists = added + n, true
  end
  results[#results + 1] = result
  if result ~= 1 then
    entries[#entries + 1] = ' ' .. ARGV[i] .. ':' .. result
  end
  if seq > latest then
    latest = seq
  end
end

-- Only SET writes: if Redis refuses it, nothing has been written. A server at its memory limit takes SET as the second write: a release
-- takes no memory.
local function set(...)
  local done = redis.pcall('SET', ...)
  if done.err then
    redis.call('PEXPIRE', sequence_key, sequence_key_ms)
    redis.call('SET', ...)
  end
end
if added > 0 and idle_ms == '0' then
  set(permits, string.format('%d', free + added), 'KEEPTTL')
elseif added > 0 then
  -- include: read_origin
  if not stored then
    local time = redis.call('TIME')
    total, set_at = added, math.floor(time[1] * 1000 + time[2] / 1000)
  end
  -- include: write_free
  if not pcall(write_free, free + added) then
    redis.call('PEXPIRE', sequence_key, sequence_key_ms)
    write_free(free + added)
  end
end
if latest > last then
  set(sequence_key, string.format('%d', latest) .. table.concat(entries), 'PX', sequence_key_ms)
end
local asks = own ~= '' and 2 or 0
if added > 0 then
  asks = wake_waiters(verb, channel, free + added, own)
end
for i = 1, #results do
  if results[i] == 1 then
    results[i] = 1 + asks
    break
  end
end
return results

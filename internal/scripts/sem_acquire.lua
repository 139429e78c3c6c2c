--[[
Acquires permits of a counting semaphore: grants the longest prefix of the requests that fits.

The permits are only a number, so a sequence key per process identifies calls: a repeated call finds its
result there and changes nothing. This call gives back the permits that were taken by calls after the last
confirmed one, because the process never learned of them.

KEYS     1 permits (string: free permits)
         2 sequence key of the process (string: "seq served taken" of its last acquiring call)
         3 origin (string: "permits that were set, or nothing if they do not expire when idle, and the instant, ms, at
           which they were set"), with an idle expiry or after unconfirmed calls
ARGV     1 sequence number   2 sequence number of the last confirmed call   3 expiry of the sequence key, ms
         4 PUBLISH or SPUBLISH   5 channel   6 idle expiry, ms, or 0   7 to wait in the line: see permit_acquire; else empty
         8.. permits per request
Returns  {requests served, 1 if the permits were ever set else 0, free permits, ms to the expiry of the semaphore, or until nothing is kept
         for another any more, or -1}; the last is set only if a request was not served; of a waiter also its place in the line and
         unheard: see take_place
Errors   WRONGKIND the key holds no number, STALE a later call of the process has been executed
]]
local permits, sequence_key, origin = KEYS[1], KEYS[2], KEYS[3]
local seq, confirmed, sequence_key_ms = ARGV[1] + 0, ARGV[2] + 0, ARGV[3]
local verb, channel, idle_ms, in_line = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local first_request = 8

-- include: permit_line
-- include: read_with_kept
-- include: check_permits
local is_set = stored and 1 or 0
local last_call = redis.call('GET', sequence_key) or '0 0 0'
local last, served, taken = string.match(last_call, '^(%d+) (%d+) (%d+)$')
last, served, taken = tonumber(last), tonumber(served), tonumber(taken)
if not last then
  return redis.error_reply('WRONGKIND the process key holds no call')
end
if last > seq then
  return redis.error_reply('STALE a later call has been executed')
end
local requests = #ARGV - first_request + 1

-- Most calls are granted at once, and concern no waiter and no earlier call.
if stored and not record and in_line == '' and not fair and not origin and last <= confirmed then
  local wanted = 0
  for i = first_request, #ARGV do
    wanted = wanted + ARGV[i]
  end
  if wanted > 0 and wanted <= free then
    redis.call('SET', permits, string.format('%d', free - wanted), 'KEEPTTL')
    redis.call('SET', sequence_key, string.format('%d %d %d', seq, requests, wanted), 'PX', sequence_key_ms)
    return {requests, 1, free - wanted, -1}
  end
end

-- include: kept_permits
-- include: wake_waiters
-- include: usable_permits
if last == seq then -- this call was executed before, and its reply lost
  if waiter then -- as if it were first, so that it asks again when it listens
    return {served, is_set, free, -1, served < requests and 1 or -1, served < requests and 1 or 0}
  end
  return {served, is_set, free, -1}
end

-- include: read_origin
local given_back = 0
if last > confirmed and stored then
  -- Permits that were set after the call are not those that it took. Some servers read their clock for each command:
  -- when in doubt, they were set before.
  local left, time = redis.call('PTTL', sequence_key), redis.call('TIME')
  local called_at = time[1] * 1000 + time[2] / 1000 + left - sequence_key_ms
  if set_at <= called_at + 10 then
    given_back = taken
  end
end

served, taken = 0, 0
for i = first_request, #ARGV do
  local n = ARGV[i] + 0
  if not stored or not fits(n, taken - given_back, i - first_request + 1) then
    break
  end
  served, taken = served + 1, taken + n
end

free = free + given_back - taken
local expires = -1
if stored and served < requests then
  expires = redis.call('PTTL', permits)
  if total and idle_ms ~= '0' then
    expires = free >= total and tonumber(idle_ms) or -1
  end
end

-- include: write_free
-- Only SET writes: if Redis refuses it, nothing has been written.
if taken ~= given_back or stored and idle_ms ~= '0' then
  write_free(free)
end
redis.call('SET', sequence_key, string.format('%.0f %d %.0f', seq, served, taken), 'PX', sequence_key_ms)

-- The rest are hints, which must not fail the call. The first request that waits is the one for which the waiter is in the line.
local later, wanted_later, left_to_it = nil, nil, usable + given_back - taken
if waiter and stored and served < requests then
  for request = served + 1, requests do
    if wait_of(request) then
      later, wanted_later = request, tonumber(ARGV[first_request + request - 1])
      break
    end
  end
end
-- include: take_place
if stored and place ~= 1 and (given_back > taken or others_next) then
  wake_waiters(verb, channel, free)
end
if kept_until and stored and served < requests and place ~= 3 then
  local ends = kept_until - line_now + (place == 2 and 60 or 0)
  expires = expires < 0 and ends or math.min(expires, ends)
end
local reply = {served, is_set, free, expires, nil}
if waiter then
  reply[5], reply[6] = place, unheard
end
return reply

--[[
Adds plain permits. A release is known by the sequence number that the key of its process remembers, so that a second execution adds
nothing.

KEYS     1 permits (string: free permits)   2 the process's last releases (string: "seq seq:code ..")
ARGV     1 how long the process's key is kept, ms   2 PUBLISH or SPUBLISH   3 channel
         and per release   sequence number   permits   1 to add only if the semaphore exists else 0   most free permits or 0
Returns  per release   1 added, 0 no semaphore, -1 above the most
Errors   WRONGKIND the key holds no number
]]
local permits, calls = KEYS[1], KEYS[2]
local kept_ms, verb, channel = ARGV[1], ARGV[2], ARGV[3]
local first_release = 4

-- include: read_permits
local record = redis.call('GET', calls) or '0'
local last = tonumber(string.match(record, '^%d+'))
if not last then
  return redis.error_reply('WRONGKIND the process key holds no call')
end

local codes, entries = {}, {}
local exists, sum, latest = stored and true, 0, last
for i = first_release, #ARGV, 4 do
  local seq, n, only_existing, most = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2] == '1', tonumber(ARGV[i + 3])
  local code = 1
  if seq <= last then
    code = tonumber(string.match(record, ' ' .. ARGV[i] .. ':(-?%d)') or 1) -- executed before, and its reply lost
  elseif only_existing and not exists then
    code = 0
  elseif most > 0 and free + sum + n > most then
    code = -1
  else
    sum, exists = sum + n, true
  end
  codes[#codes + 1] = code
  entries[#entries + 1] = ARGV[i] .. ':' .. code
  latest = math.max(latest, seq)
end

-- SET alone writes, so that it is refused before anything is written.
if sum > 0 then
  redis.call('SET', permits, string.format('%.0f', free + sum), 'KEEPTTL')
end
if latest > last then
  redis.call('SET', calls, string.format('%.0f', latest) .. ' ' .. table.concat(entries, ' '), 'PX', kept_ms)
end
if sum > 0 then
  redis.pcall(verb, channel, string.format('%.0f', free + sum)) -- a hint must not fail the call
end
return codes

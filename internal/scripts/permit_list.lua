--[[
Reads the leased permits of a semaphore, plain or fair, and changes nothing. Permits whose lease has ended count as free.

KEYS     1 permits (string: free permits)
         2 leases (zset: permit id -> the instant, ms, at which its lease ends)
         3 fence (string: the last token)
ARGV     1 how many permits are listed at most   2 channel
Returns  {1 if the permits were ever set else 0, free, held, the last token or 0, processes in the line or -1 if Redis does not tell,
         then for each listed permit, those first whose leases end first, its id and ms to that end, -1 for ever}
Errors   WRONGKIND the key, or the fence, holds no number
]]
local permits, leases, fence = KEYS[1], KEYS[2], KEYS[3]
local most, channel = ARGV[1], ARGV[2]
-- include: permit_line
-- include: forever
-- include: read_clock
-- include: read_permits
-- include: check_permits
-- include: read_fence
local expired = redis.call('ZCOUNT', leases, '-inf', now)
local held = redis.call('ZCARD', leases) - expired
local waiting = redis.pcall('ZCARD', (line_keys(channel)))
if type(waiting) ~= 'number' then -- the user has no right to the line, or its slot migrates
  waiting = -1
end
local listed = redis.call('ZRANGE', leases, expired, expired + most - 1, 'WITHSCORES')

local reply = {stored and 1 or 0, stored and free + expired or 0, held, last_token, waiting}
for i = 1, #listed, 2 do
  local ends = tonumber(listed[i + 1])
  reply[#reply + 1] = listed[i]
  reply[#reply + 1] = ends >= forever and -1 or math.ceil(ends - now)
end
return reply

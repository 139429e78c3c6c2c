--[[
Renews leased permits, each grant for a lease of its own.

KEYS     1 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 GT never to make a lease shorter, as late calls must not, or XX to set it   and per grant   lease, ms
         number of permits   their ids
Returns  per id   1 renewed, 0 it is not held
]]
local leases = KEYS[1]
local mode = ARGV[1]
local first_grant = 2
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local held, entries, i = {}, {}, first_grant
while ARGV[i] do
  local lease, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  for from = i + 2, i + 1 + n, 1000 do
    local ends = redis.call('ZMSCORE', leases, unpack(ARGV, from, math.min(from + 999, i + 1 + n)))
    for j, instant in ipairs(ends) do
      local holds = instant and tonumber(instant) > now
      held[#held + 1] = holds and 1 or 0
      if holds then
        entries[#entries + 1] = string.format('%.0f', now + lease)
        entries[#entries + 1] = ARGV[from + j - 1]
      end
    end
  end
  i = i + 2 + n
end

for from = 1, #entries, 2000 do
  local last = math.min(from + 1999, #entries)
  if mode == 'GT' then
    redis.call('ZADD', leases, 'XX', 'GT', unpack(entries, from, last))
  else
    redis.call('ZADD', leases, 'XX', unpack(entries, from, last))
  end
end
return held

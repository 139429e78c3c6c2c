--[[
Renews the leases of permits, grant by grant.

KEYS     1 leases (zset: permit id -> the instant, ms, at which its lease ends)
         2 permits (string: free permits), with an idle expiry
ARGV     1 GT to never shorten a lease, as a late copy must not, or XX to set it   2 idle expiry, ms, or 0
         and per grant   lease, ms   number of permits   their ids
Returns  per id   1 renewed, 0 it is not held
]]
local leases, permits = KEYS[1], KEYS[2]
local mode, idle_ms = ARGV[1], tonumber(ARGV[2])
local first_grant = 3
-- include: read_clock

-- new_leases alternates end and id.
local renewed, new_leases, i = {}, {}, first_grant
while ARGV[i] do
  local lease, n = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local last = i + 1 + n
  for from = i + 2, last, 1000 do
    local ends = redis.call('ZMSCORE', leases, unpack(ARGV, from, math.min(from + 999, last)))
    for j, instant in ipairs(ends) do
      local is_held = instant and tonumber(instant) > now
      renewed[#renewed + 1] = is_held and 1 or 0
      if is_held then
        new_leases[#new_leases + 1] = string.format('%.0f', now + lease)
        new_leases[#new_leases + 1] = ARGV[from + j - 1]
      end
    end
  end
  i = last + 1
end

if #new_leases > 0 then
  redis.call('ZREM', leases, '') -- changes nothing: a server at its memory limit refuses ZADD as the first write
end
-- include: idle
for j = 1, #new_leases, 2 do
  last_end = math.max(last_end, new_leases[j])
end
if idle_ms > 0 and #new_leases > 0 then
  redis.call('PEXPIRE', permits, life(last_end))
  redis.call('PEXPIRE', leases, life(last_end))
end
for from = 1, #new_leases, 2000 do
  local last = math.min(from + 1999, #new_leases)
  if mode == 'GT' then
    redis.call('ZADD', leases, 'XX', 'GT', unpack(new_leases, from, last))
  else
    redis.call('ZADD', leases, 'XX', unpack(new_leases, from, last))
  end
end
return renewed

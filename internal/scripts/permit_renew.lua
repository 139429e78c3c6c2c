--[[
Renews the leases of permits, grant by grant.

KEYS     1 leases (zset: permit id -> the instant, ms, at which its lease ends)
ARGV     1 GT to never shorten a lease, as a late copy must not, or XX to set it
         and per grant   lease, ms   number of permits   their ids
Returns  per id   1 renewed, 0 it is not held
]]
local leases = KEYS[1]
local mode = ARGV[1]
local first_grant = 2
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

for from = 1, #new_leases, 2000 do
  local last = math.min(from + 1999, #new_leases)
  if mode == 'GT' then
    redis.call('ZADD', leases, 'XX', 'GT', unpack(new_leases, from, last))
  else
    redis.call('ZADD', leases, 'XX', unpack(new_leases, from, last))
  end
end
return renewed

-- permit_renew.lua  KEYS[1]=leases ARGV: ttlMillis, GT or XX, ids  returns {1 renewed or 0 gone, ..}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score, held = string.format('%.0f', now + ARGV[1]), {}
for i = 3, #ARGV do
  local due = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if due and tonumber(due) > now then
    if ARGV[2] == 'GT' then
      redis.call('ZADD', KEYS[1], 'XX', 'GT', score, ARGV[i]) -- a late renewal must not shorten a lease
    else
      redis.call('ZADD', KEYS[1], 'XX', score, ARGV[i])
    end
    held[i - 2] = 1
  else
    held[i - 2] = 0
  end
end
return held

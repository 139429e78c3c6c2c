-- rate_limit.lua  KEYS[1]=config ARGV: 1 if it was used  returns {rate, intervalMs, keepAliveMs, type}
local c = redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type', 'keepAliveTime')
local rate, ms, keep = tonumber(c[1]), tonumber(c[2]), tonumber(c[4]) or 0
if not (rate and ms and c[3] and rate > 0 and ms > 0 and rate % 1 + ms % 1 == 0 and rate + ms < 9e15) then return redis.error_reply('NOTCONFIGURED no limit') end
if keep > 0 and ARGV[1] == '1' then
  redis.call('PEXPIRE', KEYS[1], keep)
end
return {rate, ms, keep, c[3] == '1' and 1 or 0}

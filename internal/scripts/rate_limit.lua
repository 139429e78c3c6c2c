--[[
Reads the limit of Redisson's RRateLimiter, and lets its keep-alive begin anew.

KEYS     1 config (hash)
ARGV     1 1 if the limit was used
Returns  {rate, interval in ms, keep-alive in ms, type}
Errors   NOTCONFIGURED no limit is set
]]
local config_key = KEYS[1]
local used = ARGV[1] == '1'

local config = redis.call('HMGET', config_key, 'rate', 'interval', 'type', 'keepAliveTime')
local rate, interval_ms, keep_ms = tonumber(config[1]), tonumber(config[2]), tonumber(config[4]) or 0
if not (rate and interval_ms and config[3] and rate > 0 and interval_ms > 0
    and rate % 1 + interval_ms % 1 == 0 and rate + interval_ms < 9e15) then
  return redis.error_reply('NOTCONFIGURED no limit')
end
if used and keep_ms > 0 then
  redis.call('PEXPIRE', config_key, keep_ms)
end
return {rate, interval_ms, keep_ms, config[3] == '1' and 1 or 0}

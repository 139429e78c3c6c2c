-- rw_read_renew.lua  KEYS[1,3..]=hash KEYS[2,4..]=own timeout ARGV: ttlMillis, id1, .., idn  returns {1 renewed or 0 not held by id, ..}
local ms = tonumber(ARGV[1])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local held = {}
for i = 1, #ARGV - 1 do
  local key, timeout = KEYS[2 * i - 1], KEYS[2 * i]
  local own = redis.pcall('HEXISTS', key, ARGV[i + 1])
  if type(own) == 'table' then
    -- A key overwritten by another type is a lock lost, not a reason to fail the others.
    if not string.find(own.err, 'WRONGTYPE', 1, true) then
      return own
    end
    own = 0
  end
  if own == 1 then
    local left = redis.call('PTTL', key)
    if redis.call('PTTL', timeout) < ms then
      redis.call('SET', timeout, 1, 'PX', ms)
    end
    if left ~= -1 and left < ms then
      redis.call('PEXPIRE', key, ms)
    end
  end
  held[i] = own
end
return held

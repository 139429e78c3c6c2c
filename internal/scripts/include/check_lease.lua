-- A lease is checked before the first write: PEXPIRE would delete the key for a lease below 1, and fail for one that is not an integer.
local lease_ms = tonumber(lease)
if not lease_ms or lease_ms < 1 or lease_ms > 2^53 or lease_ms % 1 ~= 0 then
  return redis.error_reply('ERR a lease is not an integer from 1 to 2^53')
end

-- lock_renew.lua  KEYS[1..n]=hash ARGV: ttlMillis, id1, .., idn  returns {1 held for ttlMillis or longer, 0 not held by id, ..}
local ms = tonumber(ARGV[1])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  -- PEXPIRE would delete the key.
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local held = {}
for i, key in ipairs(KEYS) do
  local own = redis.pcall('HEXISTS', key, ARGV[i + 1])
  if type(own) == 'table' then
    -- A key overwritten by another type is a lock lost, not a reason to fail the others.
    if not string.find(own.err, 'WRONGTYPE', 1, true) then
      return own
    end
    own = 0
  end
  -- Never shorter: the holder may have been promised more, and calls may overtake each other.
  if own == 1 and redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ARGV[1])
  end
  held[i] = own
end
return held

-- write_back writes a state without a change, to find out whether the server accepts writes. If there is no state, it writes an unused
-- one, which expires at once.
local function write_back(key, value, unused)
  if value then
    redis.call('SET', key, value, 'KEEPTTL')
  else
    redis.call('SET', key, unused, 'PX', 1)
  end
end

-- write_back writes a state as it is, which shows whether the server accepts writes. In the place of an absent state it writes an
-- unused one, which expires at once.
local function write_back(key, value, unused)
  if value then
    redis.call('SET', key, value, 'KEEPTTL')
  else
    redis.call('SET', key, unused, 'PX', 1)
  end
end

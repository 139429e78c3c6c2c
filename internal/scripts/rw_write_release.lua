-- rw_write_release.lua  KEYS[1]=hash KEYS[2]=channel ARGV: id, PUBLISH|SPUBLISH  returns 1 released, 0 not held by id
local key = KEYS[1]
if redis.call('HDEL', key, ARGV[1]) == 0 then
  return 0
end
if redis.call('HLEN', key) > 1 then
  -- The writer keeps what it reads.
  redis.call('HSET', key, 'mode', 'read')
else
  redis.call('DEL', key)
end
redis.call(ARGV[2], KEYS[2], '1')
return 1

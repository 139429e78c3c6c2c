-- lock_release.lua  KEYS[1]=hash KEYS[2]=channel ARGV: id, PUBLISH|SPUBLISH  returns 1 released, 0 not held by id
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call(ARGV[2], KEYS[2], '0')
end
return 1

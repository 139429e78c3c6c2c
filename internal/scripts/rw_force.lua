-- rw_force.lua  KEYS[1]=hash KEYS[2]=channel ARGV: read|write, PUBLISH|SPUBLISH  returns 1 freed, 0 not held that way
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('WRONGKIND the key holds a lock that is not a read/write lock')
end
if mode ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[2], KEYS[2], '1')
return 1

-- lock_force.lua  KEYS[1]=hash KEYS[2]=channel ARGV: PUBLISH|SPUBLISH  returns 1 freed, 0 was free
if redis.call('HLEN', KEYS[1]) == 0 then
  return 0
end
if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
redis.call('DEL', KEYS[1])
redis.call(ARGV[1], KEYS[2], '0')
return 1

-- rate_return.lua  KEYS[1]=config KEYS[2]=value KEYS[3]=permits ARGV: member, n  returns 1 given back, 0 not in the log
if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then
  return 0
end
local v = redis.call('GET', KEYS[2])
if v and string.match(v, '^-?%d+$') then
  redis.call('INCRBY', KEYS[2], ARGV[2])
end
return 1

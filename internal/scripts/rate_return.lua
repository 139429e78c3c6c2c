-- rate_return.lua  KEYS[1]=config KEYS[2,3]=value KEYS[4,5]=permits ARGV: member, n  returns 1 given back, 0 not in the log
local own = redis.call('HGET', KEYS[1], 'type') == '1' and 1 or 0
if redis.call('ZREM', KEYS[4 + own], ARGV[1]) == 0 then
  return 0
end
local v = redis.call('GET', KEYS[2 + own])
if v and string.match(v, '^-?%d+$') then
  redis.call('INCRBY', KEYS[2 + own], ARGV[2])
end
return 1

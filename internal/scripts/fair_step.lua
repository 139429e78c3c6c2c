-- fair_step.lua  KEYS[1]=permits KEYS[2]=leases KEYS[3]=queue KEYS[4]=alive KEYS[5]=needs KEYS[6]=fence ARGV: verb, channel, waitMillis, owner, fenceMillis, l, l leaving ids, {ttlMillis, 1 waits, n, ids}..  returns {{1 removed or 0, ..}, 1 set or 0, free, held, nearest expiry in ms or -1, token or 0, ..}
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now, mine, gone, i = math.floor(micros / 1000), {}, {}, 7
local alive, value, back = string.format('%.0f', now + ARGV[3]), redis.call('GET', KEYS[1]), redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if value and (tonumber(value) or 0.5) % 1 ~= 0 then return redis.error_reply('WRONGKIND the key holds no number') end
for j = 7, 6 + ARGV[6] do
  gone[j - 6] = redis.call('ZREM', KEYS[2], ARGV[j]); redis.call('ZREM', KEYS[3], ARGV[j]); redis.call('ZREM', KEYS[4], ARGV[j]); redis.call('HDEL', KEYS[5], ARGV[j]); back, i = back + gone[j - 6], j + 1
end
local free = tonumber(value or 0) + (value and back or 0)
while ARGV[i] do
  local n, id = tonumber(ARGV[i + 2]), ARGV[i + 3]
  mine[#mine + 1] = {i, i + 3, i + 2 + n}
  if value and not redis.call('ZSCORE', KEYS[2], id) and (ARGV[i + 1] == '1' or redis.call('ZCARD', KEYS[3]) == 0 and n <= free) then
    redis.call('ZADD', KEYS[3], 'NX', (redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or 0) + 1, id); redis.call('ZADD', KEYS[4], alive, id)
    redis.call('HSET', KEYS[5], id, ARGV[4] .. table.concat(ARGV, '', i + 3, i + 2 + n))
  end
  i = i + 3 + n
end
local head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
while head do
  local need, lives = redis.call('HGET', KEYS[5], head), tonumber(redis.call('ZSCORE', KEYS[4], head) or 0) > now
  local n = lives and need and #need / 16 - 2 or 0
  if n > free then break end
  free = free - n
  for j = 1, n do redis.call('ZADD', KEYS[2], alive, string.sub(need, 17 + 16 * j, 32 + 16 * j)) end
  redis.call('ZREM', KEYS[3], head); redis.call('ZREM', KEYS[4], head); redis.call('HDEL', KEYS[5], head)
  if n > 0 and string.sub(need, 1, 32) ~= ARGV[4] then redis.call(ARGV[1], ARGV[2] .. ':' .. string.sub(need, 1, 32), n) end
  head = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
end
if value and free ~= tonumber(value) then redis.call('INCRBY', KEYS[1], free - value) end
local token, near = math.max(tonumber(redis.call('GET', KEYS[6]) or 0) + 1, micros), redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local reply = {gone, value and 1 or 0, free, redis.call('ZCARD', KEYS[2]), near and math.max(near - now, 0) or -1}
for k, m in ipairs(mine) do
  local own = redis.call('ZSCORE', KEYS[2], ARGV[m[2]])
  for j = m[2], own and m[3] or 0 do redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', now + ARGV[m[1]]), ARGV[j]) end
  if own then redis.call('SET', KEYS[6], string.format('%.0f', token + k), 'PX', ARGV[5]) end
  reply[5 + k] = own and token + k or 0
end
return reply

-- fair_lock_acquire.lua  KEYS[1]=hash KEYS[2]=queue KEYS[3]=timeouts KEYS[4]=alive KEYS[5]=channel KEYS[6]=fence or none ARGV: id, ttlMillis, 1 waits, waitMillis, aliveMillis, PUBLISH|SPUBLISH, fenceMillis  returns {1, ttlMillis, token} if held by id, else {0, ms until it may be free or -1}
local key, queue, timeouts, alive, id, ms = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], tonumber(ARGV[2])
if not ms or ms < 1 or ms > 2^53 or ms % 1 ~= 0 then
  return redis.error_reply('ERR ttlMillis is not an integer from 1 to 2^53')
end
local found, held, time = redis.call('HMGET', key, 'mode', id), redis.call('PTTL', key), redis.call('TIME')
if found[1] then
  return redis.error_reply('WRONGKIND the key holds a read/write lock')
end
local now, head, skipped, left = time[1] * 1000 + math.floor(time[2] / 1000), redis.call('LINDEX', queue, 0), false, 0
while head and head ~= id do
  local score = tonumber(redis.call('ZSCORE', timeouts, head) or 0)
  left = math.min(score, tonumber(redis.call('ZSCORE', alive, head) or score)) - now
  if left > 0 then break end -- else it was not heard of for too long
  redis.call('LPOP', queue); redis.call('ZREM', timeouts, head); redis.call('ZREM', alive, head)
  head, skipped = redis.call('LINDEX', queue, 0), true
end
if found[2] or held == -2 and (not head or head == id) then
  local token = KEYS[6] and (tonumber(redis.call('GET', KEYS[6]) or 0) or -1)
  if token == -1 then return redis.error_reply('WRONGKIND the fence holds no number') end
  token = token and (token == 0 or not found[2]) and math.max(token + 1, time[1] * 1000000 + time[2]) or token
  if token then redis.call('SET', KEYS[6], string.format('%.0f', token), 'PX', ARGV[7]) end
  redis.call('LREM', queue, 1, id); redis.call('ZREM', alive, id)
  for _, other in ipairs(redis.call('ZREM', timeouts, id) == 1 and redis.call('ZRANGE', timeouts, 0, -1) or {}) do
    redis.call('ZINCRBY', timeouts, -ARGV[4], other)
  end
  redis.call('HSET', key, id, 1); redis.call('PEXPIRE', key, math.max(held, ms)) -- never shorter: see lock_acquire.lua
  return {1, ms, token or nil}
end
if skipped and held == -2 then redis.call(ARGV[6], KEYS[5] .. ':' .. head, '0') end
if ARGV[3] == '1' then
  local rank, last = redis.call('ZRANK', timeouts, id), redis.call('ZRANGE', timeouts, -1, -1, 'WITHSCORES')[2]
  -- Who is first takes a free lock about now. Those behind it look soon, to learn by when it may be theirs.
  left = math.min(left, 100 * ((rank or 0) + 1))
  local due = now + math.max(held, 0) + ARGV[4] * ((rank or 0) + 1)
  if not rank then redis.call('RPUSH', queue, id); due = math.max(due, (last or 0) + ARGV[4]) end
  redis.call('ZADD', timeouts, 'GT', due, id); redis.call('ZADD', alive, now + ARGV[5], id)
  for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], math.max(due, last or 0) - now) end
end
return {0, held == -2 and left or held}

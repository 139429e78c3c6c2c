--[[
Renews the leases of claimed tasks.

KEYS     1 running   2 attempts
ARGV     for each task: id, token, lease in us, and half a us more if it has not begun; see delay_work
Returns  for each task 1 if it is still claimed under the token, or 0
]]
local running_key, attempts_key = KEYS[1], KEYS[2]
-- include: delay_task
-- include: clock
local now, reply, first = clock_micros(), {}, true
for at = 1, #ARGV, 3 do
  local id = ARGV[at]
  local _, _, token, _, lost = attempt_of(redis.call('HGET', attempts_key, id))
  local held = token == ARGV[at + 1] and not lost and redis.call('ZSCORE', running_key, id)
  held = held and tonumber(held) > now
  if held then
    if first then
      redis.call('ZREM', running_key, '') -- changes nothing: a server at its memory limit refuses ZADD as the first write
      first = false
    end
    redis.call('ZADD', running_key, 'XX', string.format('%.1f', now + ARGV[at + 2]), id) -- also if the clock was set back
  end
  reply[#reply + 1] = held and 1 or 0
end
return reply

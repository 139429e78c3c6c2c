--[[
Reads what is known of tasks.

KEYS     1 due   2 tasks   3 attempts   4 running   5 later   6 failed   7 paused
ARGV     ids
Returns  {now; 1 if the queue is paused; and for each id: "pending", "claimed", "failed" or ""; the instant at which it is due, its lease
          ends or it failed; task; failures, losses, token; 1 if another is scheduled for afterwards; error with which it has failed}
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key = unpack(KEYS)
-- include: delay_task
-- include: clock
local reply = {instant(clock_micros()), redis.call('HEXISTS', KEYS[7], '')}
for _, id in ipairs(ARGV) do
  local due, ends, failed = redis.call('ZSCORE', due_key, id), redis.call('ZSCORE', running_key, id), redis.call('ZSCORE', failed_key, id)
  local failures, losses, token, _, lost, mark = attempt_of(redis.call('HGET', attempts_key, id))
  for _, field in ipairs({
    ends and not lost and 'claimed' or (ends or due) and 'pending' or failed and 'failed' or '',
    instant(tonumber(ends or due or failed or 0)),
    redis.call('HGET', tasks_key, id) or '', failures, losses, token, redis.call('HEXISTS', later_key, id),
    string.match(mark, '^!(.*)$') or '',
  }) do
    reply[#reply + 1] = field
  end
end
return reply

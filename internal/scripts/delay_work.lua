--[[
Ends attempts of tasks, and claims tasks that are due, for one process that serves a queue.

Calls are numbered as those of delay_edit. A copy of the last call returns the tasks that this call claimed, as far as the process
still holds them. Ends of attempts name the token of the attempt, so that a late one does not end another.

KEYS     1 to 6 as in delay_edit
         7 record of the last claim of the process (string: number, token before its first one, number of tasks, end of the lease)
         8 token (string: the last token)
ARGV     1 number of the call   2 how long its record stays, ms
         3 lease, us   4 number of tasks to claim   5 us before its time that a task may be claimed
         6 losses of its lease after which a task fails   7 number of failed tasks to keep   8 how long they stay, us
         9 how long the token stays, ms, and for each attempt that ended
           "done", id, token, ""
           "again", id, token, us until the next attempt; after a failure
           "failed", id, token, ""
           "back", id, token, ""; it was not begun
Returns  {us until the next task is due or a lease ends, or -1; number of ends that were recorded;
          and for each claimed task: id, task, us until it is due, failures, losses, token}
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key, record_key, token_key = unpack(KEYS)
local number, lease_us, wanted, ahead = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local most_losses, most_failed = tonumber(ARGV[6]), tonumber(ARGV[7])

-- include: delay_task
-- include: clock
local now = clock_micros()
local record = redis.call('GET', record_key)
local last, base, claimed, ends = string.match(record or '', '^(%d+) (%d+) (%d+) (%d+)$')

-- next_event returns the time until a task is due or a lease ends.
local function next_event()
  local due = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')[2]
  local lost = redis.call('ZRANGE', running_key, 0, 0, 'WITHSCORES')[2]
  local at = math.min(tonumber(due or 2 ^ 53), tonumber(lost or 2 ^ 53))
  return at < 2 ^ 53 and math.max(0, at - now) or -1
end

if last and tonumber(last) >= number then
  local reply = {next_event(), 0}
  if tonumber(last) == number and tonumber(claimed) > 0 then
    local wait = math.max(0, base + ahead - now) -- none of them was due later
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', running_key, ends, ends)) do
      local failures, losses, token = attempt_of(attempts_key, id)
      if tonumber(token) > tonumber(base) and tonumber(token) <= base + claimed then
        for _, field in ipairs({id, redis.call('HGET', tasks_key, id) or '', wait, failures, losses, token}) do
          reply[#reply + 1] = field
        end
      end
    end
  end
  return reply
end

-- include: delay_writes

-- leave ends an attempt of a claimed task. The task that was scheduled meanwhile takes its place. Otherwise it is pending again at
-- an instant, or has failed, or is gone.
local function leave(id, failures, losses, token, at, has_failed)
  local next_one = redis.call('HGET', later_key, id)
  redis.call('ZREM', running_key, id)
  if next_one then
    local due, task = string.match(next_one, '^(%d+) (.*)$')
    redis.call('HSET', tasks_key, id, task)
    redis.call('HDEL', attempts_key, id)
    redis.call('HDEL', later_key, id)
    redis.call('ZADD', due_key, due, id)
  elseif at or has_failed then
    redis.call('HSET', attempts_key, id, failures .. ':' .. losses .. ':' .. token)
    redis.call('ZADD', at and due_key or failed_key, instant(at or now), id)
  else
    redis.call('HDEL', tasks_key, id)
    redis.call('HDEL', attempts_key, id)
  end
end

local recorded = 0
for at = 10, #ARGV, 4 do
  local how, id = ARGV[at], ARGV[at + 1]
  local failures, losses, token, cancelled = attempt_of(attempts_key, id)
  if token == ARGV[at + 2] and redis.call('ZSCORE', running_key, id) then
    recorded = recorded + 1
    if how == 'done' or cancelled then
      leave(id)
    elseif how == 'again' then
      leave(id, failures + 1, losses, token, now + ARGV[at + 3])
    elseif how == 'failed' then
      leave(id, failures + 1, losses, token, nil, true)
    else
      leave(id, failures, losses, token, now)
    end
  end
end

-- A task whose lease has ended is due at once.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', running_key, '-inf', instant(now), 'LIMIT', 0, 1000)) do
  local failures, losses, token, cancelled = attempt_of(attempts_key, id)
  if cancelled then
    leave(id)
  elseif losses + 1 >= most_losses then
    leave(id, failures, losses + 1, token, nil, true)
  else
    leave(id, failures, losses + 1, token, now)
  end
end

local found = wanted > 0 and redis.call('ZRANGEBYSCORE', due_key, '-inf', instant(now + ahead), 'WITHSCORES', 'LIMIT', 0, wanted) or {}
local reply = {0, recorded}
local n = #found / 2
base = math.max(tonumber(redis.call('GET', token_key) or 0), now)
ends = instant(base + lease_us)
if n > 0 then
  redis.call('SET', token_key, instant(base + n), 'PX', ARGV[9])
  for i = 1, n do
    local id = found[2 * i - 1]
    local failures, losses = attempt_of(attempts_key, id)
    local token = instant(base + i)
    redis.call('HSET', attempts_key, id, failures .. ':' .. losses .. ':' .. token)
    redis.call('ZADD', running_key, ends, id)
    redis.call('ZREM', due_key, id)
    for _, field in ipairs({id, redis.call('HGET', tasks_key, id) or '', math.max(0, found[2 * i] - now), failures, losses, token}) do
      reply[#reply + 1] = field
    end
  end
end
redis.call('SET', record_key, string.format('%.0f %.0f %.0f %s', number, base, n, ends), 'PX', ARGV[2])

local excess = redis.call('ZCARD', failed_key) - most_failed
local old = redis.call('ZRANGEBYSCORE', failed_key, '-inf', instant(now - ARGV[8]), 'LIMIT', 0, 100)
if excess > #old then
  old = redis.call('ZRANGE', failed_key, 0, math.min(excess, 100) - 1)
end
for _, id in ipairs(old) do
  redis.call('ZREM', failed_key, id)
  redis.call('HDEL', tasks_key, id)
  redis.call('HDEL', attempts_key, id)
end
reply[1] = next_event()
return reply

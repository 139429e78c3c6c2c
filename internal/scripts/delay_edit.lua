--[[
Schedules, cancels and reschedules tasks of a queue.

Each process numbers its calls and has at most one in flight. The script remembers the number and the results of the last call of a
process: a copy of it gets the same results, and a copy of an earlier one does nothing. A process may forget its number when Redis has.

KEYS     1 due (zset: id of a pending task -> the instant, us of the server's clock, from which it may run)
         2 tasks (hash: id -> task)
         3 attempts (hash: id -> attempt), of tasks that were claimed
         4 running (zset: id of a claimed task -> the instant at which its lease ends)
         5 later (hash: id of a claimed task -> "due task": what is to run after it)
         6 failed (zset: id -> the instant at which it failed for the last time)
         7 record of the last call of the process (string: number results)
ARGV     1 number of the call   2 how long its record stays, ms   3 command that wakes   4 channel, and for each request
           "schedule", id, us from now, or "@" and the instant, mode, most us from the first schedule or 0, "length:headers payload"
             mode: "replace", or "absent" to keep a task that is pending or claimed
           "cancel", id, "", "", "", ""
           "move", id, as for schedule, "", most us from the first schedule or 0, ""
           "retry" or "forget", id, "", "", "", "", of a failed task
Returns  for each request 1 if it was done, or 0
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key, record_key = unpack(KEYS)
local number, verb = tonumber(ARGV[1]), ARGV[3]

local record = redis.call('GET', record_key)
local last, results = string.match(record or '', '^(%d+) (%d*)$')
if last and tonumber(last) >= number then
  local copy = {}
  for result in string.gmatch(tonumber(last) == number and results or '', '%d') do
    copy[#copy + 1] = tonumber(result)
  end
  return copy
end

-- include: delay_task
-- include: clock
-- include: delay_writes
local now = clock_micros()
local earliest = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')[2]
earliest = tonumber(earliest or 2 ^ 53)

-- due_at returns when a task is to run that was first scheduled at an instant.
local function due_at(wanted, most, first)
  local at = string.sub(wanted, 1, 1) == '@' and tonumber(string.sub(wanted, 2)) or now + wanted
  return most > 0 and math.min(at, first + most) or at
end

-- place makes a task pending, in place of one that is pending or has failed.
local function place(id, at, task)
  redis.call('HSET', tasks_key, id, task)
  redis.call('HDEL', attempts_key, id)
  redis.call('ZREM', failed_key, id)
  redis.call('ZADD', due_key, instant(at), id)
end

local do_request = {}

do_request.schedule = function(id, wanted, mode, most, text)
  local running = redis.call('ZSCORE', running_key, id)
  local old = running and redis.call('HGET', later_key, id) or not running and redis.call('HGET', tasks_key, id)
  if mode == 'absent' and (running or redis.call('ZSCORE', due_key, id)) then
    return 0
  end
  local first = now
  if most > 0 then
    first = old and first_of(running and string.match(old, ' (.*)$') or old) or now
  end
  local at = due_at(wanted, most, first)
  local task = (most > 0 and instant(first) or '') .. ':' .. text
  if running then
    redis.call('HSET', later_key, id, instant(at) .. ' ' .. task)
  else
    place(id, at, task)
  end
  return 1
end

do_request.cancel = function(id)
  if redis.call('ZSCORE', running_key, id) then
    local failures, losses, token = attempt_of(attempts_key, id)
    local was_later = redis.call('HDEL', later_key, id)
    redis.call('HSET', attempts_key, id, failures .. ':' .. losses .. ':' .. token .. ':x')
    return was_later
  end
  if redis.call('ZREM', due_key, id) == 0 then
    return 0
  end
  redis.call('HDEL', tasks_key, id)
  redis.call('HDEL', attempts_key, id)
  return 1
end

do_request.move = function(id, wanted, _, most)
  local running = redis.call('ZSCORE', running_key, id)
  local old = running and redis.call('HGET', later_key, id)
  if old then
    local task = string.match(old, ' (.*)$')
    redis.call('HSET', later_key, id, instant(due_at(wanted, most, first_of(task) or now)) .. ' ' .. task)
    return 1
  end
  if running or not redis.call('ZSCORE', due_key, id) then
    return 0
  end
  local first = most > 0 and first_of(redis.call('HGET', tasks_key, id)) or now
  redis.call('ZADD', due_key, instant(due_at(wanted, most, first)), id)
  return 1
end

do_request.retry = function(id)
  if not redis.call('ZSCORE', failed_key, id) then
    return 0
  end
  place(id, now, redis.call('HGET', tasks_key, id))
  return 1
end

do_request.forget = function(id)
  if redis.call('ZREM', failed_key, id) == 0 then
    return 0
  end
  redis.call('HDEL', tasks_key, id)
  redis.call('HDEL', attempts_key, id)
  return 1
end

local reply = {}
for at = 5, #ARGV, 6 do
  reply[#reply + 1] = do_request[ARGV[at]](ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4]) or 0, ARGV[at + 5])
end
redis.call('SET', record_key, number .. ' ' .. table.concat(reply), 'PX', ARGV[2])
local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')[2]
if first and tonumber(first) < earliest then
  redis.pcall(verb, ARGV[4], '')
end
return reply

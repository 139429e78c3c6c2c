--[[
Schedules, cancels and reschedules tasks of a queue, and pauses it.

Each process numbers its calls and has at most one in flight. The script remembers the number and the results of the last call of a
process: a copy of it gets the same results, and a copy of an earlier one does nothing. A process may forget its number when Redis has.

KEYS     1 due (zset: id of a pending task -> the instant, us of the server's clock, from which it may run)
         2 tasks (hash: id -> task)
         3 attempts (hash: id -> attempt), of tasks that were claimed
         4 running (zset: id of a claimed task -> the instant at which its lease ends, and half a us more while nobody has begun it)
         5 later (hash: id of a claimed task -> "due:task": what is to run after it)
         6 failed (zset: id -> the instant at which it failed for the last time)
         7 record of the last call of the process (string: number results)
         8 waiting (zset: process that waits for tasks -> when it entered the list)
         9 paused (hash: '' -> the instant at which the queue was paused), while it is
ARGV     1 number of the call   2 how long its record stays, ms   3 command that wakes   4 channel of the queue; those of the processes
         that wait have a colon and the process besides, and for each request
           "schedule", id, us from now, or "@" and the instant, mode, most us from the first schedule or 0, task without its first field
             mode: "replace", or "absent" to keep a task that is pending, or claimed and not cancelled
           "cancel", id, "", "", "", ""
           "move", id, as for schedule, "", most us from the first schedule or 0, ""
           "retry" or "forget", id, "", "", "", "", of a failed task
           "pause" or "resume", "", "", "", "", ""
Returns  for each request 1 if it was done, or 0
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key, record_key, waiting_key = unpack(KEYS)
local paused_key = KEYS[9]
local number, verb, channel = tonumber(ARGV[1]), ARGV[3], ARGV[4]

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
-- include: delay_changes
-- include: delay_waiting
local now, soonest, at_once = clock_micros(), 2 ^ 53, 0
local earliest = tonumber(redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')[2] or 2 ^ 53)
local ids, bounded_ids, resumed = {}, {}, false
for at = 6, #ARGV, 6 do
  ids[#ids + 1] = ARGV[at]
  if ARGV[at] == '' then
    read_part('paused', {''}, 1, 1)
  end
  if (tonumber(ARGV[at + 3]) or 0) > 0 then -- no other request needs the text, which may be long
    bounded_ids[#bounded_ids + 1] = ARGV[at]
  end
end
for _, name in ipairs({'attempt', 'later', 'due', 'ends', 'failed'}) do
  read_part(name, ids, 1, #ids)
end
read_part('text', bounded_ids, 1, #bounded_ids)

-- A task that waits after the loss of its lease is pending for whoever edits it.
for _, id in ipairs(ids) do
  local task = tasks[id]
  local failures, losses, token, _, lost = attempt_of(task.attempt)
  if task.ends and lost then
    task.due, task.ends, task.attempt = math.floor(task.ends), false, failures .. ':' .. losses .. ':' .. token .. ':'
    if task.later then -- from a version to which it is claimed
      local due, text = string.match(task.later, '^(%d+):(.*)$')
      task.due, task.text, task.attempt, task.later = tonumber(due), text, '0:0:' .. token, false
    end
  end
end

-- bounded returns when a task is to run, and its text. If its delay is bounded, that counts from when it was first scheduled, which is
-- in the text that it has, or now.
local function bounded(wanted, most, old, text)
  local at = string.sub(wanted, 1, 1) == '@' and tonumber(string.sub(wanted, 2)) or now + wanted
  if most == 0 then
    return at, text
  end
  local first = string.match(old or '', '^(%d+):')
  first = tonumber(first or now)
  return math.min(at, first + most), instant(first) .. string.match(text, '^%d*(:.*)$')
end

local function set_due(task, at)
  task.due, soonest, at_once = at, math.min(soonest, at), at_once + (at <= now and 1 or 0)
end

-- place makes a task pending. Its token stays known, so that the next one is higher.
local function place(task, at, text)
  local _, _, token = attempt_of(task.attempt)
  task.text, task.attempt, task.failed = text, token ~= '0' and '0:0:' .. token, false
  set_due(task, at)
end

local do_request = {}

do_request.schedule = function(task, wanted, mode, most, text)
  local _, _, _, cancelled = attempt_of(task.attempt)
  if mode == 'absent' and (task.due or task.later or task.ends and not cancelled) then
    return 0
  end
  if task.ends then
    local at, bound = bounded(wanted, most, task.later and string.match(task.later, '^%d+:(.*)$'), ':' .. text)
    task.later = instant(at) .. ':' .. bound
  else
    local failures, losses = attempt_of(task.attempt)
    place(task, bounded(wanted, most, task.due and failures + losses == 0 and task.text, ':' .. text))
  end
  return 1
end

do_request.cancel = function(task)
  if task.ends then
    local _, _, _, cancelled = attempt_of(task.attempt)
    local had_later = task.later
    task.later, task.attempt = false, cancelled and task.attempt or (task.attempt or '0:0:0') .. ':x'
    return had_later and 1 or 0
  end
  if not task.due then
    return 0
  end
  task.due, task.text, task.attempt = false, false, false
  return 1
end

do_request.move = function(task, wanted, _, most)
  if task.ends and task.later then
    local text = string.match(task.later, '^%d+:(.*)$')
    local at, bound = bounded(wanted, most, text, text)
    task.later = instant(at) .. ':' .. bound
    return 1
  end
  if task.ends or not task.due then
    return 0
  end
  local failures, losses, token = attempt_of(task.attempt)
  task.attempt = task.attempt and failures .. ':' .. losses .. ':' .. token -- an attempt that was lost cannot end it any more
  local at
  at, task.text = bounded(wanted, most, task.text, task.text)
  set_due(task, at)
  return 1
end

do_request.retry = function(task)
  if not task.failed then
    return 0
  end
  place(task, now, task.text)
  return 1
end

do_request.forget = function(task)
  if not task.failed then
    return 0
  end
  task.failed, task.text, task.attempt = false, false, false
  return 1
end

do_request.pause = function(queue)
  if queue.paused then
    return 0
  end
  queue.paused = instant(now)
  return 1
end

do_request.resume = function(queue)
  if not queue.paused then
    return 0
  end
  queue.paused, resumed = false, true
  return 1
end

local reply, adds = {}, false
for at = 5, #ARGV, 6 do
  adds = adds or ARGV[at] == 'schedule'
  reply[#reply + 1] = do_request[ARGV[at]](tasks[ARGV[at + 1]], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4]) or 0, ARGV[at + 5])
end
if not adds then -- a server at its memory limit takes what adds no task: it refuses ZADD and SET as the first write
  redis.call('ZREM', due_key, '')
end
write_tasks(record, {{record_key, number .. ' ' .. table.concat(reply), ARGV[2]}})
if resumed then -- the tasks that have become due meanwhile are to be claimed
  soonest, at_once = first_due(now)
end
if soonest < earliest or resumed and soonest < 2 ^ 53 then
  local _, told = notify_front({}, '', soonest - now, at_once)
  redis.pcall(verb, channel, told > 0 and '1' or '')
end
return reply

--[[
Ends attempts of tasks, and claims tasks that are due, for one process that serves a queue.

Calls are numbered as those of delay_edit. A copy of the last call returns the tasks that this call claimed, as far as the process
still holds them. Ends of attempts name the token of the attempt, so that a late one does not end another.

The lease of a claimed task whose handler is not known to have begun ends half a microsecond after a whole one. If it ends before Redis
learns of the beginning, no loss is counted. A task that loses its lease stays in running for a pause that no process holds. Then, and
if nobody had begun it, it is pending again under the instant at which it was due, and a process claims it for a free worker only.

KEYS     1 to 6 as in delay_edit
         7 record of the last claim of the process (string: number, token before its first one, number of tasks, end of the lease,
           number of ends that were read, and after a blank the reports of the reply)
         8 token (string: the last token)
         9 waiting   10 paused, as in delay_edit
ARGV     1 number of the call   2 how long its record stays, ms
         3 lease, us   4 number of tasks to claim   5 us before its time that a task may be claimed
         6 losses of its lease after which a task fails   7 number of failed tasks to keep   8 how long they stay, us
         9 how long the token stays, ms   10 command that wakes   11 channel, as in delay_edit
         12 number of the claimed tasks that begin at once   13 losses from which on a task runs alone
         14 "1" to check first the types of keys that a claim does not read
         15 process, or "" if it cannot be in the waiting list   16 number of tasks that it has room for, also if it claims none
         17 "1" to enter the list only if the process hears its channel, and for each attempt
           "done", id, token, ""
           "again", id, token, us until the next attempt; after a failure
           "failed", id, token, error of the handler
           "back", id, token, ""; it was not begun, or its handler was told to end
           "begun", id, token, ""; it runs
Returns  {us until the next task is due or a lease ends, or -1; number of ends that were recorded; number of attempts that were read, from
          the first one; 1 if a task was lost before it had begun, so that it is better to claim for free workers only, 2 if the queue is
          paused: then the call claims no task, and the first number is for the end of a lease;
          reports: for each task a letter, the length of its id, ":" and the id: "L" has failed because its lease was lost too often,
          "D" had failed and was deleted, "M" had no payload any more and was removed;
          us until the first of the pending tasks that are left is due, negative if it is overdue, 2^52 or more if there is none;
          place of the process in the waiting list, or a larger number if it is behind the first ones, 0 if it has no room and so is not
          in the list, -1 if it cannot be;
          the server's time, us, to which the times above refer;
          number of claimed tasks that count as begun, from the first one;
          and for each claimed task: id, task, "failures:losses:token@due", where due is an instant, us; one that runs alone comes last,
          but in a copy}
Errors   WRONGKIND the token key holds no number
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key, record_key, token_key, waiting_key = unpack(KEYS)
local number, lease_us, wanted, ahead = ARGV[1] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local most_losses, most_failed, verb, channel, most_bytes = ARGV[6] + 0, ARGV[7] + 0, ARGV[10], ARGV[11], 4 * 2 ^ 20
local free, alone_from, first = ARGV[12] + 0, ARGV[13] + 0, 18
local process, room, paused_key = ARGV[15], ARGV[16] + 0, KEYS[10]
local first_pause, longest_pause = 1000000, 300000000

-- include: delay_task
-- include: clock
-- include: delay_changes
-- include: delay_waiting
local paused = redis.call('HEXISTS', paused_key, '') == 1
local now = clock_micros()
local reply, reports = {-1, 0, 0, paused and 2 or 0, '', 0, -1, now, 0}, {}
local record = redis.call('GET', record_key)
local last, base, claimed, ends, read, told = string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) ?(%d*) ?(.*)$')

local function add_claimed(id, text, attempt, begun)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = id, text, attempt
  reply[9] = reply[9] + (begun and 1 or 0)
end

local function report(kind, id)
  reports[#reports + 1] = kind .. #id .. ':' .. id
end

-- score_of returns the score of the first member of a reply of ZRANGE.
local function score_of(members)
  return tonumber(members[2] or 2 ^ 53)
end

local function set_event(next_due, next_end)
  local event = math.min(paused and 2 ^ 53 or next_due, next_end)
  if event < 2 ^ 53 then
    reply[1] = math.max(0, math.ceil(event) - now)
  end
  reply[6] = next_due - now
  return event - now
end

-- place_in returns the place of the process in the list whose first processes are given, if it is among them.
local function place_in(front)
  for place, other in ipairs(front) do
    if other == process then
      return place
    end
  end
end

if last and tonumber(last) >= number then
  ends, reply[3] = tonumber(ends), tonumber(last) == number and tonumber(read) or (#ARGV - first + 1) / 4
  reply[5] = tonumber(last) == number and told or ''
  if tonumber(last) == number and tonumber(claimed) > 0 and ends > now then
    local held, ids = redis.call('ZRANGE', running_key, ends, instant(ends) .. '.5', 'BYSCORE', 'WITHSCORES'), {}
    for at = 1, #held, 2 do
      ids[#ids + 1] = held[at]
      set_read(held[at], 'ends', tonumber(held[at + 1]))
    end
    read_part('text', ids, 1, #ids)
    read_part('attempt', ids, 1, #ids)
    for _, id in ipairs(ids) do
      local task = tasks[id]
      local failures, losses, token, _, _, _, due = attempt_of(task.attempt)
      if task.text and tonumber(token) > tonumber(base) and tonumber(token) <= base + claimed then
        due = due or ends - lease_us + ahead -- none was due later; an earlier version has cancelled this one
        add_claimed(id, task.text, failures .. ':' .. losses .. ':' .. token .. '@' .. instant(due), task.ends == ends)
      end
    end
  end
  set_event(score_of(redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')), score_of(redis.call('ZRANGE', running_key, 0, 0, 'WITHSCORES')))
  if process ~= '' then
    local since = redis.pcall('ZSCORE', waiting_key, process)
    reply[7] = place_in(read_front()) or tonumber(since) and places + 1 or 0
  end
  return reply
end

if paused then
  wanted = 0
end
if ARGV[14] == '1' then
  redis.call('HMGET', later_key, '')
  redis.call('ZMSCORE', failed_key, '')
end
local next_due = score_of(redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES'))
local first_lease = redis.call('ZRANGE', running_key, 0, 0, 'WITHSCORES')
local next_end = score_of(first_lease)
local named, begun, expired, found = {}, {}, {}, {}
for at = first, #ARGV, 4 do
  local ids = ARGV[at] == 'begun' and begun or named
  ids[#ids + 1] = ARGV[at + 1]
end
local ended_count = #named
if next_end <= now then
  expired = redis.call('ZRANGE', running_key, '-inf', instant(now), 'BYSCORE', 'LIMIT', 0, 500)
  for _, id in ipairs(expired) do
    named[#named + 1] = id
  end
end

-- A process behind the first one leaves to that what is not overdue.
local front = process ~= '' and read_front() or {}
local old_place = place_in(front)
local behind = #front > 0 and old_place ~= 1
local latest, overdue = behind and now or now + ahead, now - next_due
if wanted > 0 and next_due <= latest then
  local dues = redis.call('ZRANGE', due_key, '-inf', instant(latest), 'BYSCORE', 'LIMIT', 0, wanted, 'WITHSCORES')
  for at = 1, #dues, 2 do
    found[#found + 1] = dues[at]
    set_read(dues[at], 'due', tonumber(dues[at + 1]))
  end
end

-- page_after returns how many tasks are read after a number of them: as many as there is room for if they are as long, up to 32.
local function page_after(count, bytes)
  return count == 0 and 4 or math.max(1, math.min(32, math.floor((most_bytes - bytes) * count / bytes)))
end

-- Tasks that were scheduled meanwhile are read with their texts: most_bytes of them, and a page in vain. The other ends and leases wait
-- for the next call.
local read_count, later_bytes = 0, 0
while read_count < #named and later_bytes <= most_bytes do
  local from = read_count + 1
  read_count = math.min(read_count + page_after(read_count, later_bytes), #named)
  read_part('later', named, from, read_count)
  for i = from, read_count do
    later_bytes = later_bytes + #(tasks[named[i]].later or '')
  end
end
local all = {unpack(named, 1, read_count)}
for i = 1, #begun do
  all[#all + 1] = begun[i]
end
for i = 1, #found do
  all[#all + 1] = found[i]
end
read_part('attempt', all, 1, #all)
read_part('ends', all, 1, #all - #found)

-- leave ends an attempt of a claimed task. The task that was scheduled meanwhile takes its place. Otherwise it is pending again at
-- an instant, or has failed, or is gone.
local new_failed, ended = 0, {}
local function leave(id, attempt, at, has_failed)
  local task = tasks[id]
  task.ends = false
  if task.later then
    local due, text = string.match(task.later, '^(%d+):(.*)$')
    local _, _, token = attempt_of(task.attempt)
    task.due, task.text, task.attempt, task.later = tonumber(due), text, '0:0:' .. token, false
  elseif at or has_failed then
    task.attempt, task.due = attempt, at
    if has_failed then
      task.failed, new_failed = now, new_failed + 1
    end
  else
    task.text, task.attempt = false, false
  end
  if task.due then
    ended[#ended + 1] = id
  end
end

-- leave_due makes a claimed task pending again under the instant at which it was due. That is now if the clock was set back meanwhile, or
-- if the attempt has no such instant, as an earlier version has written it.
local function leave_due(id, attempt, due)
  leave(id, attempt, due and due <= now + ahead and due or now)
end

-- pause_of returns how long a task waits after a loss: half a second to a second, and twice as long after each further one. The tokens
-- spread the tasks of a process evenly.
local function pause_of(losses, token)
  local longest = math.min(first_pause * 2 ^ (losses - 1), longest_pause)
  return math.floor(longest / 2 * (1 + token % 1000000 * 0.618034 % 1))
end

-- end_late ends a task whose handler has returned after the lease had ended, if no other attempt has begun and nothing has changed the
-- task. It is gone, or has failed if an attempt is given.
local function end_late(id, attempt)
  read_part('due', {id}, 1, 1)
  read_part('failed', {id}, 1, 1)
  local task = tasks[id]
  if attempt then
    new_failed = new_failed + (task.failed and 0 or 1)
    task.due, task.failed, task.attempt = false, now, attempt
  else
    task.due, task.failed, task.text, task.attempt = false, false, false, false
  end
  reply[2] = reply[2] + 1
end

for at = first, #ARGV, 4 do
  local how, id = ARGV[at], ARGV[at + 1]
  if how == 'begun' or reply[3] < read_count then
    local task, token, is_last = tasks[id], ARGV[at + 2], false
    local failures, losses, last_token, cancelled, lost, _, due
    if how == 'done' and task.ends and string.find(task.attempt or '', ':' .. token .. '@%d+$') then
      is_last = true -- neither cancelled nor lost
    else
      failures, losses, last_token, cancelled, lost, _, due = attempt_of(task.attempt)
      is_last = last_token == token
    end
    if how ~= 'begun' then
      reply[3] = reply[3] + 1
    elseif is_last and task.ends and not lost then
      task.ends = math.floor(task.ends)
    end
    if how ~= 'begun' and is_last and task.ends then
      reply[2] = reply[2] + 1
      if how == 'done' or cancelled then
        leave(id)
      elseif how == 'again' then
        leave(id, failures + 1 .. ':' .. losses .. ':' .. token, now + ARGV[at + 3])
      elseif how == 'failed' then
        leave(id, failures + 1 .. ':' .. losses .. ':' .. token .. '!' .. ARGV[at + 3], nil, true)
      else
        leave_due(id, failures .. ':' .. losses .. ':' .. token, due)
      end
    elseif how == 'done' and is_last and lost then
      end_late(id)
    elseif how == 'failed' and is_last and lost then
      end_late(id, failures + 1 .. ':' .. losses .. ':' .. token .. '!' .. ARGV[at + 3])
    end
  end
end

for i = ended_count + 1, read_count do
  local id, task = named[i], tasks[named[i]]
  local failures, losses, token, cancelled, lost, _, due = attempt_of(task.attempt)
  if not task.ends or task.ends > now then -- ended in this call
  elseif cancelled then
    leave(id)
  elseif task.ends % 1 ~= 0 then
    leave_due(id, failures .. ':' .. losses .. ':' .. token .. ':', due)
  elseif losses + 1 >= most_losses then
    if not task.later then
      report('L', id)
    end
    leave(id, failures .. ':' .. losses + 1 .. ':' .. token .. ':', nil, true)
  elseif task.later then
    leave(id)
  else
    task.attempt = failures .. ':' .. losses + 1 .. ':' .. token .. '@' .. instant(due or now) .. ':'
    task.ends = now + pause_of(losses + 1, tonumber(token)) + 0.5
  end
end

-- Tasks that have become due in this call are claimed if no others are left.
for _, id in ipairs(ended) do
  if #found < wanted and tasks[id].due <= latest then
    found[#found + 1] = id
  end
end

-- read_texts reads the texts of tasks that were found.
local function read_texts(from, last)
  local unread = {}
  for i = from, last do
    if tasks[found[i]].text == nil then
      unread[#unread + 1] = found[i]
    end
  end
  read_part('text', unread, 1, #unread)
end

-- The reply has most_bytes of tasks, or one task. The others stay due. At most a page is read in vain. One without a text is removed.
-- One that was lost before it had begun is claimed for a free worker only, so that its beginning is known.
local ids, bytes, text_count = {}, 0, 0
for i, id in ipairs(found) do
  if i > text_count then
    text_count = math.min(text_count + page_after(text_count, bytes), #found)
    read_texts(i, text_count)
  end
  local task = tasks[id]
  local _, losses, _, _, lost = attempt_of(task.attempt)
  if not task.due then -- ended in this call
  elseif not task.text then
    task.due, task.attempt = false, false
    report('M', id)
  else
    reply[4] = lost and 1 or reply[4]
    bytes = bytes + #task.text
    if #ids > 0 and bytes > most_bytes or lost and #ids >= free and losses < alone_from then
      break
    end
    ids[#ids + 1] = id
    if losses >= alone_from then
      break
    end
  end
end

ends = now + lease_us
local records = {}
if #ids > 0 then
  local last_token = redis.call('GET', token_key) or '0'
  base = string.match(last_token, '^%d+$') and math.max(tonumber(last_token), now) or 2 ^ 53
  for _, id in ipairs(ids) do
    local _, _, token = attempt_of(tasks[id].attempt)
    base = math.max(base, tonumber(token)) -- also if the last token was lost
  end
  if base + #ids >= 2 ^ 53 then
    return redis.error_reply('WRONGKIND the key of the last token holds no number, or one that is too large')
  end
  for i, id in ipairs(ids) do
    local task = tasks[id]
    local failures, losses = attempt_of(task.attempt)
    local token, begins = instant(base + i), i <= free and losses < alone_from
    task.attempt = (task.attempt and failures .. ':' .. losses .. ':' or '0:0:') .. token .. '@' .. instant(task.due)
    add_claimed(id, task.text, task.attempt, begins)
    task.ends, task.due = begins and ends or ends + 0.5, false
  end
  records[2] = {token_key, instant(base + #ids), ARGV[9]}
end

-- Tasks that have become due, and that this call leaves, may be claimed by another process.
local soonest = 2 ^ 53
for _, id in ipairs(ended) do
  soonest = math.min(soonest, tasks[id].due or soonest)
end

-- Failed tasks are dropped when one is added, and when there is nothing else to do.
if new_failed > 0 or next_due > now + 1000000 then
  local excess = redis.call('ZCARD', failed_key) + new_failed - most_failed
  local old = redis.call('ZRANGE', failed_key, '-inf', instant(now - ARGV[8]), 'BYSCORE', 'LIMIT', 0, 500)
  if excess > #old then
    old = redis.call('ZRANGE', failed_key, 0, math.min(excess, 1000) - 1)
  end
  read_part('attempt', old, 1, #old)
  for _, id in ipairs(old) do
    if tasks[id].failed == nil then -- not ended in this call
      set_read(id, 'failed', true)
      tasks[id].failed, tasks[id].text, tasks[id].attempt = false, false, false
      report('D', id)
    end
  end
end

reply[5] = table.concat(reports)
records[1] = {
  record_key, string.format('%.0f %.0f %.0f %.0f %.0f ', number, #ids > 0 and base or 0, #ids, ends, reply[3]) .. reply[5], ARGV[2],
}
redis.call('ZREM', due_key, '') -- changes nothing: a server at its memory limit, filled by tasks perhaps, refuses SET as the first write
write_tasks(record, records)
local was_soonest = soonest < next_due
if #ids + #all > 0 then -- a slot that migrates refuses to read a key that this script has emptied
  next_due = score_of(redis.pcall('ZRANGE', due_key, 0, 0, 'WITHSCORES'))
end
local task = tasks[first_lease[1]]
if task and task.ends ~= next_end then
  next_end = score_of(redis.pcall('ZRANGE', running_key, 0, 0, 'WITHSCORES'))
elseif #ids > 0 then
  next_end = math.min(next_end, ends)
end
local wait = set_event(next_due, next_end)

-- The process enters the list if it has room left, or leaves it, and so do those before it that have missed what it has claimed.
local rest = (reply[4] == 1 and free or room) - #ids
local changed, entered = false, process ~= '' and rest > 0
if entered and ARGV[17] == '1' then
  local heard = redis.pcall(verb, channel .. ':' .. process, '0')
  entered = (tonumber(heard) or 0) > 0
end
if entered and not old_place then
  local added = redis.pcall('ZADD', waiting_key, 'NX', instant(now), process)
  entered = tonumber(added) ~= nil
  changed = #front < places
elseif process ~= '' and not entered then
  leave_list(process)
  changed = old_place
end
for place = 1, behind and #ids > 0 and math.min(#front, (old_place or places + 1) - 1) or 0 do
  if overdue >= missed_after(place) then
    leave_list(front[place])
    changed = true
  end
end
local at_once = 0 -- tasks that the process leaves, although they are due
if next_due <= now and (was_soonest or changed) and not paused then
  at_once = select(2, first_due(now))
end
if was_soonest then
  local told
  front, told = notify_front({}, process, wait, at_once)
  redis.pcall(verb, channel, told + (entered and place_in(front) and 1 or 0) > 0 and '1' or '')
elseif changed then
  front = notify_front(front, process, wait, at_once)
end
if process ~= '' then
  reply[7] = entered and (place_in(front) or places + 1) or rest > 0 and -1 or 0
end
return reply

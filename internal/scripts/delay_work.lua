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
         9 how long the token stays, ms   10 command that wakes   11 channel, and for each attempt that ended
           "done", id, token, ""
           "again", id, token, us until the next attempt; after a failure
           "failed", id, token, ""
           "back", id, token, us until it is due; it was not begun, or its handler was told to end
Returns  {us until the next task is due or a lease ends, or -1; number of ends that were recorded;
          and for each claimed task: id, task, us until it is due, failures, losses, token}
Errors   WRONGKIND the token key holds no number
]]
local due_key, tasks_key, attempts_key, running_key, later_key, failed_key, record_key, token_key = unpack(KEYS)
local number, lease_us, wanted, ahead = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local most_losses, most_failed, verb, most_bytes = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[10], 4 * 2 ^ 20

-- include: delay_task
-- include: clock
-- include: delay_changes
local now, reply = clock_micros(), {-1, 0}
local record = redis.call('GET', record_key)
local last, base, claimed, ends = string.match(record or '', '^(%d+) (%d+) (%d+) (%d+)$')

local function add_claimed(id, text, wait, failures, losses, token)
  local at = #reply
  reply[at + 1], reply[at + 2], reply[at + 3] = id, text or '', wait
  reply[at + 4], reply[at + 5], reply[at + 6] = failures, losses, token
end

-- score_of returns the score of the first member of a reply of ZRANGE.
local function score_of(members)
  return tonumber(members[2] or 2 ^ 53)
end

local function set_event(next_due, next_end)
  local event = math.min(next_due, next_end)
  if event < 2 ^ 53 then
    reply[1] = math.max(0, event - now)
  end
end

if last and tonumber(last) >= number then
  ends = tonumber(ends)
  if tonumber(last) == number and tonumber(claimed) > 0 and ends > now then
    local ids = redis.call('ZRANGE', running_key, ends, ends, 'BYSCORE')
    read_parts('text attempt', ids, 1, #ids)
    for _, id in ipairs(ids) do
      local failures, losses, token = attempt_of(tasks[id].attempt)
      if tonumber(token) > tonumber(base) and tonumber(token) <= base + claimed then
        local wait = math.max(0, ends - lease_us + ahead - now) -- none of them was due later
        add_claimed(id, tasks[id].text, wait, failures, losses, token)
      end
    end
  end
  set_event(score_of(redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')), score_of(redis.call('ZRANGE', running_key, 0, 0, 'WITHSCORES')))
  return reply
end

local ids, found, ended = {}, {}, {}
for at = 12, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at + 1]
end
local next_due = score_of(redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES'))
local next_end, expired = score_of(redis.call('ZRANGE', running_key, 0, 0, 'WITHSCORES')), {}
if next_end <= now then
  expired = redis.call('ZRANGE', running_key, '-inf', instant(now), 'BYSCORE', 'LIMIT', 0, 500)
  for _, id in ipairs(expired) do
    ids[#ids + 1] = id
  end
end
if wanted > 0 and next_due <= now + ahead then
  local dues = redis.call('ZRANGE', due_key, '-inf', instant(now + ahead), 'BYSCORE', 'LIMIT', 0, wanted, 'WITHSCORES')
  for at = 1, #dues, 2 do
    found[#found + 1] = dues[at]
    set_read(dues[at], 'due', tonumber(dues[at + 1]))
  end
end
read_parts('attempt later ends', ids, 1, #ids)
read_parts('attempt', found, 1, #found)

-- leave ends an attempt of a claimed task. The task that was scheduled meanwhile takes its place. Otherwise it is pending again at
-- an instant, or has failed, or is gone.
local new_failed = 0
local function leave(id, failures, losses, token, at, has_failed)
  local task = tasks[id]
  task.ends = false
  if task.later then
    local due, text = string.match(task.later, '^(%d+):(.*)$')
    task.due, task.text, task.attempt, task.later = tonumber(due), text, '0:0:' .. token, false
  elseif at or has_failed then
    task.attempt = failures .. ':' .. losses .. ':' .. token
    task.due, task.failed = at, not at and now or nil
    new_failed = new_failed + (at and 0 or 1)
  else
    task.text, task.attempt = false, false
  end
  if task.due then
    ended[#ended + 1] = id
  end
end

for at = 12, #ARGV, 4 do
  local how, id = ARGV[at], ARGV[at + 1]
  local failures, losses, token, cancelled = attempt_of(tasks[id].attempt)
  if token == ARGV[at + 2] and tasks[id].ends then
    reply[2] = reply[2] + 1
    if how == 'done' or cancelled then
      leave(id, failures, losses, token)
    elseif how == 'again' then
      leave(id, failures + 1, losses, token, now + ARGV[at + 3])
    elseif how == 'failed' then
      leave(id, failures + 1, losses, token, nil, true)
    else
      leave(id, failures, losses, token, now + ARGV[at + 3])
    end
  end
end

-- A task whose lease has ended is due at once.
for _, id in ipairs(expired) do
  local failures, losses, token, cancelled = attempt_of(tasks[id].attempt)
  if tasks[id].ends and cancelled then
    leave(id, failures, losses, token)
  elseif tasks[id].ends then
    local is_last = losses + 1 >= most_losses
    leave(id, failures, losses + 1, token, not is_last and now or nil, is_last)
  end
end

-- Tasks that have become due in this call are claimed if no others are left. If it claims none of them, another process may.
local soonest = 2 ^ 53
for _, id in ipairs(ended) do
  if #found < wanted and tasks[id].due <= now + ahead then
    found[#found + 1] = id
  else
    soonest = math.min(soonest, tasks[id].due)
  end
end

-- The reply has most_bytes of tasks, or one task. The others stay due. At most 32 tasks are read in vain.
local count, bytes = 0, 0
while count < #found do
  if count % 32 == 0 then
    local unread = {}
    for i = count + 1, math.min(count + 32, #found) do
      if tasks[found[i]].text == nil then
        unread[#unread + 1] = found[i]
      end
    end
    read_parts('text', unread, 1, #unread)
  end
  bytes = bytes + #(tasks[found[count + 1]].text or '')
  if count > 0 and bytes > most_bytes then
    break
  end
  count = count + 1
end

ends = now + lease_us
local records = {}
if count > 0 then
  local last_token = redis.call('GET', token_key) or '0'
  base = string.match(last_token, '^%d+$') and math.max(tonumber(last_token), now) or 2 ^ 53
  for i = 1, count do
    local _, _, token = attempt_of(tasks[found[i]].attempt)
    base = math.max(base, tonumber(token)) -- also if the last token was lost
  end
  if base + count >= 2 ^ 53 then
    return redis.error_reply('WRONGKIND the key of the last token holds no number, or one that is too large')
  end
  for i = 1, count do
    local task = tasks[found[i]]
    local failures, losses = attempt_of(task.attempt)
    local token = instant(base + i)
    add_claimed(found[i], task.text, task.due - now, failures, losses, token)
    task.attempt, task.ends, task.due = failures .. ':' .. losses .. ':' .. token, ends, false
  end
  records[2] = {token_key, instant(base + count), ARGV[9]}
end
records[1] = {record_key, string.format('%.0f %.0f %.0f %.0f', number, count > 0 and base or 0, count, ends), ARGV[2]}

-- Failed tasks are dropped when one is added, and when there is nothing else to do.
if new_failed > 0 or next_due > now + 1000000 then
  local excess = redis.call('ZCARD', failed_key) + new_failed - most_failed
  local old = redis.call('ZRANGE', failed_key, '-inf', instant(now - ARGV[8]), 'BYSCORE', 'LIMIT', 0, 500)
  if excess > #old then
    old = redis.call('ZRANGE', failed_key, 0, math.min(excess, 1000) - 1)
  end
  read_parts('attempt', old, 1, #old)
  for _, id in ipairs(old) do
    set_read(id, 'failed', true)
    tasks[id].failed, tasks[id].text, tasks[id].attempt = false, false, false
  end
end

write_tasks(record, records)
if soonest < next_due then
  redis.pcall(verb, ARGV[11], '')
end
if count > 0 or #ids > 0 then -- a slot that migrates refuses to read a key that this script has emptied
  next_due = score_of(redis.pcall('ZRANGE', due_key, 0, 0, 'WITHSCORES'))
  next_end = score_of(redis.pcall('ZRANGE', running_key, 0, 0, 'WITHSCORES'))
end
set_event(next_due, next_end)
return reply

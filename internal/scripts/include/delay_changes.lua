-- A script reads tasks, changes what it has read, and writes the differences at the end.
local tasks = {} -- by id, each with what its keys hold or false, and was, a copy as it was read

local function read_tasks(ids)
  for from = 1, #ids, 1000 do -- unpack takes no more than 8000
    local to = math.min(from + 999, #ids)
    local text, attempt = redis.call('HMGET', tasks_key, unpack(ids, from, to)), redis.call('HMGET', attempts_key, unpack(ids, from, to))
    local later, due = redis.call('HMGET', later_key, unpack(ids, from, to)), redis.call('ZMSCORE', due_key, unpack(ids, from, to))
    local ends, failed = redis.call('ZMSCORE', running_key, unpack(ids, from, to)), redis.call('ZMSCORE', failed_key, unpack(ids, from, to))
    for i = 1, to - from + 1 do
      local due_at, ends_at, failed_at = due[i] and tonumber(due[i]), ends[i] and tonumber(ends[i]), failed[i] and tonumber(failed[i])
      local was = {text = text[i], attempt = attempt[i], later = later[i], due = due_at, ends = ends_at, failed = failed_at}
      tasks[ids[from + i - 1]] = {
        text = was.text, attempt = was.attempt, later = was.later, due = due_at, ends = ends_at, failed = failed_at, was = was,
      }
    end
  end
end

-- write_tasks writes the changes, and records: key, value and ms. The key of the first one holds record, if that is not false. Nothing
-- fails after the first write. Reads have found keys of another type. Each command that follows is tried in a form that changes nothing,
-- before HSET, which has none. Removals come last, one command for each key, because a slot that migrates refuses a key that is empty.
local function write_tasks(record, records)
  local parts, set, removed, changes = {'text', 'attempt', 'later', 'due', 'ends', 'failed'}, {}, {}, false
  for _, part in ipairs(parts) do
    set[part], removed[part] = {}, {}
  end
  for id, task in pairs(tasks) do
    for i = 1, 6 do
      local part = parts[i]
      local value = task[part]
      if value ~= task.was[part] then
        local values = value and set[part] or removed[part]
        local n = #values
        if not value then
          values[n + 1] = id
        elseif i > 3 then -- ZADD takes the score first
          values[n + 1], values[n + 2] = instant(value), id
        else
          values[n + 1], values[n + 2] = id, value
        end
        changes = true
      end
    end
  end
  if changes then
    redis.call('ZADD', due_key, 'XX', 0, '') -- no id is empty
    redis.call('ZREM', due_key, '')
    redis.call('HDEL', tasks_key, '')
    if record then
      redis.call('SET', records[1][1], record, 'KEEPTTL')
    else
      redis.call('SET', records[1][1], '', 'XX')
    end
  end
  for part, key in pairs({text = tasks_key, attempt = attempts_key, later = later_key}) do
    for from = 1, #set[part], 2000 do
      redis.call('HSET', key, unpack(set[part], from, math.min(from + 1999, #set[part])))
    end
  end
  for part, key in pairs({due = due_key, ends = running_key, failed = failed_key}) do
    for from = 1, #set[part], 2000 do
      redis.call('ZADD', key, unpack(set[part], from, math.min(from + 1999, #set[part])))
    end
  end
  for _, one in ipairs(records) do
    redis.call('SET', one[1], one[2], 'PX', one[3])
  end
  for part, key in pairs({due = due_key, ends = running_key, failed = failed_key}) do
    for from = 1, #removed[part], 1000 do
      redis.call('ZREM', key, unpack(removed[part], from, math.min(from + 999, #removed[part])))
    end
  end
  for part, key in pairs({text = tasks_key, attempt = attempts_key, later = later_key}) do
    for from = 1, #removed[part], 1000 do
      redis.call('HDEL', key, unpack(removed[part], from, math.min(from + 999, #removed[part])))
    end
  end
end

-- A script reads parts of tasks, changes them, and writes the differences at the end.
local hash = {
  read = function(...) return redis.call('HMGET', ...) end,
  set = function(...) redis.call('HSET', ...) end,
  remove = function(...) redis.call('HDEL', ...) end,
}
local zset = {
  read = function(...) return redis.call('ZMSCORE', ...) end,
  set = function(...) redis.call('ZADD', ...) end,
  remove = function(...) redis.call('ZREM', ...) end,
}
local parts = { -- in the order in which they are written
  {name = 'text', key = tasks_key, kind = hash},
  {name = 'attempt', key = attempts_key, kind = hash},
  {name = 'later', key = later_key, kind = hash},
  {name = 'paused', key = paused_key, kind = hash}, -- of the id '' alone
  {name = 'due', key = due_key, kind = zset},
  {name = 'ends', key = running_key, kind = zset},
  {name = 'failed', key = failed_key, kind = zset},
}
local tasks = {} -- by id, each with its parts: nil if not read, false if there is none
local part_of = {} -- by name
for i = 1, #parts do
  local part = parts[i]
  part_of[part.name], part.was, part.present, part.absent = part, {}, {}, {} -- was: by id, as it was read
end

local function set_read(id, name, value)
  local task = tasks[id]
  if not task then
    task = {}
    tasks[id] = task
  end
  task[name], part_of[name].was[id] = value, value
end

-- read_part reads a part of the tasks with ids from first to last.
local function read_part(name, ids, first, last)
  local part = part_of[name]
  for from = first, last, 1000 do -- unpack takes no more than 8000
    local values = part.kind.read(part.key, unpack(ids, from, math.min(from + 999, last)))
    for i = 1, #values do
      local id, value = ids[from + i - 1], values[i] -- as set_read does, which would be a call for each value
      local task = tasks[id]
      if not task then
        task = {}
        tasks[id] = task
      end
      value = value and part.kind == zset and tonumber(value) or value
      task[name], part.was[id] = value, value
    end
  end
end

-- score writes an instant of a sorted set: some leases end half a microsecond later. Most leases of one script end at the same instant.
local scored, score_text
local function score(us)
  if us ~= scored then
    scored, score_text = us, us % 1 == 0 and instant(us) or string.format('%.1f', us)
  end
  return score_text
end

local function in_chunks(command, key, args)
  for from = 1, #args, 2000 do
    command(key, unpack(args, from, math.min(from + 1999, #args)))
  end
end

-- write_tasks writes the changes, and records: key, value and ms. The key of the first one holds record, if that is not false. Nothing
-- fails after the first write: each command is tried before, in a form that changes nothing, and the script has read every key that it
-- changes, but tasks, so that a key of another type was found. HSET has no such form, and comes first. Removals come last, one command for
-- each key, because a slot that migrates refuses a key that is empty.
local function write_tasks(record, records)
  local changes = false
  for id, task in pairs(tasks) do
    for name, value in pairs(task) do
      local part = part_of[name]
      if value == part.was[id] then
      elseif not value then
        changes, part.absent[#part.absent + 1] = true, id
      elseif part.kind == zset then -- ZADD takes the score first
        local present = part.present
        changes, present[#present + 1], present[#present + 2] = true, score(value), id
      else
        local present = part.present
        changes, present[#present + 1], present[#present + 2] = true, id, value
      end
    end
  end
  if changes then -- no id is empty
    redis.call('ZADD', due_key, 'XX', 0, '')
    redis.call('ZREM', due_key, '')
    redis.call('HDEL', tasks_key, '')
    if record then
      redis.call('SET', records[1][1], record, 'KEEPTTL')
    else
      redis.call('SET', records[1][1], '', 'XX')
    end
  end
  for _, part in ipairs(parts) do
    in_chunks(part.kind.set, part.key, part.present)
  end
  for _, one in ipairs(records) do
    redis.call('SET', one[1], one[2], 'PX', one[3])
  end
  for _, part in ipairs(parts) do
    in_chunks(part.kind.remove, part.key, part.absent)
  end
end

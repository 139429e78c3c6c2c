-- The waiting list has the processes that wait for tasks, in the order in which they entered. The first one asks at the next event: when
-- a task is due or a lease ends. The next ones are its guards: each asks some time after the event, in case those before it have not. The
-- others only poll. Processes hear of their places on channels of their own. No promise depends on the list: what the server refuses is
-- left out.
local places = 3

-- missed_after returns how long after an event, us, the process at a place has missed it. See guardAfter in package delay.
local function missed_after(place)
  return 25000 + (place - 1) * 50000
end

local function read_front()
  local front = redis.pcall('ZRANGE', waiting_key, 0, places - 1)
  return front.err and {} or front
end

local function leave_list(process)
  redis.pcall('ZREM', waiting_key, process)
end

-- first_due returns when the first task is due, and how many of the first ones are due now.
local function first_due(now)
  local dues, due_now = redis.pcall('ZRANGE', due_key, 0, places - 1, 'WITHSCORES'), 0
  for at = 2, #dues, 2 do
    due_now = due_now + (tonumber(dues[at]) <= now and 1 or 0)
  end
  return tonumber(dues[2] or 2 ^ 53), due_now
end

-- notify_front tells the first processes their places, and the us until the next event. As many as there are tasks to claim at once are
-- told that they are first. The caller is left out, and so are others at the places in which they are known. Processes that do not listen
-- are gone: they leave the list. It returns the first processes, and how many it has told.
local function notify_front(known, caller, wait, tasks_at_once)
  local front, place, told = read_front(), 1, 0
  for _ = 1, 64 do -- the others that are gone are for a later call
    local process = front[place]
    if not process then
      break
    elseif process == caller or process == known[place] and place > tasks_at_once then
      place = place + 1
    else
      local heard = redis.pcall(verb, channel .. ':' .. process, (place > tasks_at_once and place or 1) .. ' ' .. instant(wait))
      if heard == 0 then
        leave_list(process)
        front = read_front()
      else
        place, told = place + 1, told + (tonumber(heard) and 1 or 0)
      end
    end
  end
  return front, told
end

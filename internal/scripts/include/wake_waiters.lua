-- wake_waiters announces free permits, and wakes as many waiters as they may serve. The next one is their guard: it asks 60 ms later
-- unless it is woken until then, because one of them has not answered. Waiters whose clients do not hear are gone. If the first one
-- wants more than is free, all of it is kept, and nobody behind it is woken.
--
-- A caller that has just come may take a permit before the waiter that was woken. That is faster while permits are held for moments, and
-- ends when the first one has waited for 4 ms: from then on they are kept. Nothing is kept while others take what is kept, as Redisson's
-- clients and versions without a line do: otherwise they would get more than their share.
--
-- A fair semaphore keeps them at once. A process in which several requests wait is woken alone: some of them may have come before those of
-- the next process. That one is woken when the first has asked.
--
-- own is the waiter of the process that releases, if it has one. That one hears of its turn by the reply: wake_waiters returns 2 if it is to
-- ask, else 0. If it is alone, it stays in the line, and nothing is kept for it: callers that have just come can overtake it only as often
-- as its own process releases.
--
-- nobody is true if the line is known to be empty.
local function wake_waiters(verb, channel, free, own, nobody)
  if free <= 0 then
    return 0
  end
  redis.pcall(verb, channel, string.format('0%d', free)) -- '0': the line is woken too
  if nobody then
    return 0
  end
  local line, kept_key, fair = line_keys(channel)
  local first_place, page, waiting = 0, 2, redis.pcall('ZRANGE', line, 0, 1, 'WITHSCORES') -- mostly two are enough
  if not waiting[1] then
    return 0
  end
  if waiting[1] == own and not waiting[3] then
    return 2
  end
  local time, record = redis.pcall('TIME'), redis.pcall('GET', kept_key)
  local now_ms = (time[1] or 0) * 1000 + math.floor((time[2] or 0) / 1000)
  local kept, _, claimed = read_kept(type(record) == 'string' and record or '', now_ms)
  local left, woken, guarded, leave, own_turn = free - claimed, 0, false, {nil}, 0
  while waiting[1] and not guarded do
    for i = 1, #waiting, 2 do
      local waiter, score = waiting[i], tonumber(waiting[i + 1])
      local available = left + (kept[waiter] and kept[waiter][3] or 0)
      local wakes = available > 0 and woken < 100
      if not wakes and woken == 0 then
        guarded = true -- all is kept for waiters that were woken before, which have guards
        break
      end
      local client = string.match(waiter, '^[^:]*')
      local itself = wakes and waiter == own
      local hears = itself and 1 or redis.pcall(verb, channel .. ':' .. client, (wakes and '0 ' or '60 ') .. waiter)
      own_turn = itself and 2 or own_turn
      if type(hears) ~= 'number' then -- nobody can be woken
        guarded = true
        break
      end
      if hears == 0 and string.sub(client, 1, 1) ~= '*' then
        left, kept[waiter] = available, nil
        leave[#leave + 1] = waiter
      elseif wakes then
        local wants = math.max(1, math.floor(score % 1 * 1000 + 0.5))
        local claims = wants
        if fair and wants >= 500 then
          wants, claims = math.max(1, wants - 500), 1e9
        end
        woken, left, kept[waiter] = woken + 1, available - claims, nil
        leave[#leave + 1] = waiter
        if (fair or now_ms - score >= 4) and not kept['*'] then
          kept[waiter] = {now_ms + 50, math.min(available, wants), claims}
        end
      else
        guarded = true
        break
      end
    end
    local last_page = #waiting / 2 < page
    first_place, page = first_place + page, 100
    waiting = (guarded or last_page) and {} or redis.pcall('ZRANGE', line, first_place, first_place + page - 1, 'WITHSCORES')
  end
  if #leave > 0 then
    if record or next(kept) then
      write_kept(kept_key, kept, now_ms)
    end
    for from = 1, #leave, 1000 do
      redis.pcall('ZREM', line, unpack(leave, from, math.min(from + 999, #leave)))
    end
  end
  return own_turn
end

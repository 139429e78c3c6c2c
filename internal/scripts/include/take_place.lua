-- Lets the waiter into the line if one of its requests has to wait, and out of it otherwise. place is 1, 2, or 3 for any behind them; 0 if
-- Redis does not let it in; -1 if it does not have to be there. A waiter that comes again keeps its place, because it says how long it has
-- waited. unheard is 1 if it is first. Then it also listens on the channel of the semaphore, because releases of Redisson wake nobody in
-- the line. A fair semaphore has no such channel. A large request that is first and does not fit keeps others off what is left to it.
local place, unheard = -1, 0
if waiter then
  if not line_now then
    local time = redis.pcall('TIME')
    line_now = (time[1] or 0) * 1000 + math.floor((time[2] or 0) / 1000)
  end
  local keeps, new, yielded = nil, nil, false
  if wanted_later then
    place = 0
    local came = line_now - wait_of(later)
    if later == head then -- its message may have taken longer than the last one
      came = math.min(came, math.floor(tonumber((redis.pcall('ZSCORE', line, waiter))) or came))
    end
    local wants = math.min(wanted_later, fair and 499 or 999)
    if fair then
      local behind = later + 1
      while wait_of(behind) == false do
        behind = behind + 1
      end
      wants = wait_of(behind) and wants + 500 or wants
    end
    local score = string.format('%.0f.%03d', came, wants)
    local lasts = redis.pcall('PEXPIRE', line, alive_ms) -- first, so that no line stays for ever
    new = type(lasts) == 'number' and redis.pcall('ZADD', line, score, waiter)
    if type(new) == 'number' and (lasts == 1 or redis.pcall('PEXPIRE', line, alive_ms) == 1) then
      local first = lasts == 0 and {waiter} or redis.pcall('ZRANGE', line, 0, 1) -- it is alone in a line that was not there
      place = first[1] == waiter and 1 or first[2] == waiter and 2 or 3
    end
  else
    new = 1 - (tonumber(redis.pcall('ZREM', line, waiter)) or 0)
  end
  if place == 1 then
    unheard = fair and 0 or 1
    for other, of in pairs(kept or {}) do -- what was left to one that is behind it now: each would wait for the other's part
      if other ~= waiter and other ~= '*' and of[1] > line_now + 50 then
        left_to_it, kept[other], yielded = left_to_it + of[2], nil, true
      end
    end
    if left_to_it > 0 and (yielded or wanted_later > left_to_it) then
      keeps = {line_now + alive_ms, math.min(wanted_later, left_to_it), wanted_later}
    end
  end
  if new == 0 and taken > 0 and place ~= 1 then -- nobody has woken it, and so nobody is the guard
    local first = redis.pcall('ZRANGE', line, 0, 0)[1]
    if first then
      redis.pcall(verb, channel .. ':' .. string.match(first, '^[^:]*'), '60 ' .. first)
    end
  end
  if kept_for_it or keeps then
    kept = kept or {}
    if kept_for_it and not fair and wanted_later and taken + wanted_later <= kept_for_it[2] then
      kept['*'] = {line_now + 1000, 0, 0} -- another took it
    end
    kept[waiter] = keeps
    write_kept(kept_key, kept, line_now)
  end
  if yielded and wanted_later <= left_to_it then -- it fits now
    redis.pcall(verb, channel .. ':' .. string.match(waiter, '^[^:]*'), '0 ' .. waiter)
  end
end

-- others_next says that others may be served now: because nothing is kept for this one any more, because permits are free that only those
-- before it may take, or because the first one, which was to get many, is gone. A message that is for no waiter shows whether its client
-- hears.
local others_next = kept_for_it or blocked and not kept_until
if kept_until and not others_next then
  local first = redis.pcall('ZRANGE', line, 0, 0)[1]
  local client = first and kept[first] and string.match(first, '^[^:]*') or '*'
  others_next = string.sub(client, 1, 1) ~= '*' and redis.pcall(verb, channel .. ':' .. client, '0 -') == 0
end

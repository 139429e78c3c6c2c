-- waiter is nil for a caller that is in no line. usable is how many of the free permits are not kept for another waiter. unclaimed is how many
-- of them no other waiter wants that was woken.
local waiter, alive_ms, same, all_waited = string.match(in_line, '^(%S+) (%d+) (=?)(%S+)$')
local usable, unclaimed, kept, kept_for_it, line_now = free, free, nil, nil, nil
local kept_until = nil -- when what is kept for another is free again, unless that comes

-- wait_of returns the ms for which a request has waited, false if it does not wait, or nil behind the last one. If others wait behind these
-- requests, the list has one entry more. It is read only as far as it is needed: of a thousand requests, a few are granted. If the waiter was
-- in the line before for the first request that waits, wait_of sets head when it comes to that request.
local waited, read_to, head = {nil}, 0, nil
local function wait_of(request)
  while #waited < request do
    local _, last, ms = string.find(all_waited or '', '^([^,]+),?', read_to + 1)
    if not ms then
      return nil
    end
    read_to = last
    waited[#waited + 1] = tonumber(ms) or false
    head = head or same == '=' and waited[#waited] and #waited or nil
  end
  return waited[request]
end

if type(record) == 'string' or fair then
  local time, sum, claimed = redis.call('TIME'), nil, nil
  line_now = time[1] * 1000 + math.floor(time[2] / 1000)
  kept, sum, claimed = read_kept(type(record) == 'string' and record or '', line_now)
  kept_for_it = waiter and kept[waiter]
  usable = free - sum + (kept_for_it and kept_for_it[2] or 0)
  unclaimed = free - claimed + (kept_for_it and kept_for_it[3] or 0)
  for other, of in pairs(kept) do
    if other ~= waiter and of[2] > 0 then
      kept_until = math.min(kept_until or of[1], of[1])
    end
  end
end

-- A fair semaphore grants more than what is kept for the waiter only to requests that came before the first one in the line of the others,
-- which came at others_came. It grants nothing to a user whom Redis does not let see it; while a slot migrates, all others may be there.
local others_came, own_turn, blocked = nil, false, false
if fair then
  local first = redis.pcall('ZRANGE', line, 0, 1, 'WITHSCORES')
  if first.err and not string.find(first.err, 'attempted to access a non local key', 1, true) then
    return first
  end
  own_turn = first[1] ~= nil and first[1] == waiter
  others_came = tonumber(first[own_turn and 4 or 2])
end

-- fits reports whether the next n permits can be granted to a request, after taken.
local function fits(n, taken, request)
  if taken + n > usable then
    return false
  elseif taken + n <= (kept_for_it and kept_for_it[2] or 0) then
    return true
  elseif taken + n > unclaimed then
    return false
  end
  local wait = wait_of(request)
  blocked = others_came and not (own_turn and request == head) and not (wait and line_now - wait <= others_came)
  return not blocked
end

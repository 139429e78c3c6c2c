-- usable is how many of the free permits are not kept for others than the waiter, which is nil for a caller that is in no line. unclaimed is
-- how many of them no other wants that was woken. waited has the ms for which each request has waited, or false if it does not wait.
local waiter, alive_ms, all_waited = string.match(in_line, '^(%S+) (%d+) (%S+)$')
local usable, unclaimed, kept, kept_for_it, line_now, waited = free, free, nil, nil, nil, {nil}
local kept_until = nil -- when what is kept for another is free again, unless that comes
if waiter then
  for ms in string.gmatch(all_waited, '[^,]+') do
    waited[#waited + 1] = tonumber(ms) or false
  end
end
if type(record) == 'string' then
  local time, sum, claimed = redis.call('TIME'), nil, nil
  line_now = time[1] * 1000 + math.floor(time[2] / 1000)
  kept, sum, claimed = read_kept(record, line_now)
  kept_for_it = waiter and kept[waiter]
  usable = free - sum + (kept_for_it and kept_for_it[2] or 0)
  unclaimed = free - claimed + (kept_for_it and kept_for_it[3] or 0)
  for other, of in pairs(kept) do
    if other ~= waiter and of[2] > 0 then
      kept_until = math.min(kept_until or of[1], of[1])
    end
  end
end

-- fits reports whether the next n permits can be granted, after taken.
local function fits(n, taken)
  return taken + n <= usable and (taken + n <= unclaimed or taken + n <= (kept_for_it and kept_for_it[2] or 0))
end

-- usable is how many of the free permits are not kept for others than the waiter, which is nil for a caller that is in no line.
local waiter, alive_ms, waited = string.match(in_line, '^(%S+) (%d+) (%S+)$')
local usable, kept, kept_for_it, line_now = free, nil, nil, nil
if type(record) == 'string' then
  local time, sum = redis.call('TIME'), nil
  line_now = time[1] * 1000 + math.floor(time[2] / 1000)
  kept, sum = read_kept(record, line_now)
  kept_for_it = waiter and kept[waiter]
  usable = free - sum + (kept_for_it and kept_for_it[2] or 0)
end

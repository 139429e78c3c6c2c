-- read_kept returns per waiter {until when, how many are kept, how many it wants}, and the sums of both numbers. The waiter '*' stands for
-- others who took what was kept.
local function read_kept(record, now_ms)
  local kept, sum, claimed = {}, 0, 0
  for ends, count, wants, waiter in string.gmatch(record, '(%d+) (%d+) (%d+) (%S+)') do
    ends, count, wants = tonumber(ends), tonumber(count), tonumber(wants)
    if ends > now_ms then
      kept[waiter], sum, claimed = {ends, count, wants}, sum + count, claimed + wants
    end
  end
  return kept, sum, claimed
end

-- write_kept is the inverse of read_kept.
local function write_kept(kept_key, kept, now_ms)
  local entries, longest = {nil}, 0
  for waiter, of in pairs(kept) do
    entries[#entries + 1] = string.format('%.0f %.0f %.0f %s', of[1], of[2], of[3], waiter)
    longest = math.max(longest, of[1] - now_ms)
  end
  if longest > 0 then
    redis.pcall('SET', kept_key, table.concat(entries, ' '), 'PX', string.format('%.0f', longest))
  else
    redis.pcall('DEL', kept_key)
  end
end

-- gcra_state reads a state of GCRA and returns the instant at which the whole burst is available again, in us and num/den, at least
-- now. The form of a state is "us" or "us:num:den". If the whole burst of its writer's limit takes more than half a minute, the state
-- ends in ":burst": that time in seconds, rounded up. A fraction with another den is rounded up.
--
-- If charges of the state can be given back, it ends in "@period:returned": an instant that tells this state from those of other
-- times, and how many us were given back since. gcra_places describes the tail that may follow. It also returns these three, or nil.
-- They end when the whole burst is available. For a state of a later version the tail is false.
--
-- Three kinds of values have a special meaning:
--   A state that is more than a minute beyond both that burst and cap_us counts as none, because the clock was set back.
--   A number with an unknown suffix that expires is of a later version: nothing is granted until it expires.
--   Any other value that is not in the form is no state.
local function gcra_state(key, value, now, den, cap_us)
  local us, num, burst_s, period, returned, tail = tonumber(value), 0, 0, nil, nil, nil
  if not us then
    local text, of, so_far, rest = string.match(value, '^([^@]*)@(%d+):(%d+)([:;,%d]*)$')
    if text then
      value, us, period, returned, tail = text, tonumber(text), tonumber(of), tonumber(so_far), rest
    end
  end
  if not us then
    local whole, first, rest = string.match(value, '^(%d+):(%d+)(.*)$')
    us, burst_s = tonumber(whole), tonumber(first)
    if whole and rest ~= '' then
      local of, last = string.match(rest, '^:(%d+)(.*)$')
      num, burst_s = burst_s, last == '' and 0 or last and tonumber(string.match(last, '^:(%d+)$'))
      if tonumber(of) ~= den then
        us, num = us + 1, 0
      end
    end
    if not (us and burst_s) then
      local left = string.find(value, '^%d') and redis.call('PTTL', key) or 0
      if left > 0 then
        return cap_us + math.min(left, 315360000000) * 1000, 0, nil, nil, false
      end
      return now, 0
    end
  end
  if not (us >= now and us <= math.max(cap_us, now + math.min(burst_s, 3153600001) * 1000000) + 60000001) then
    return now, 0
  end
  return us, num, period, returned, tail
end
-- gcra_text returns the text of a state. burst_s is "0" if the text has no burst; period, returned and tail may be nil.
local function gcra_text(us, num, den, burst_s, period, returned, tail)
  local text = num > 0 and string.format('%d:%d:%d', us, num, den) or string.format('%d', us)
  if burst_s ~= '0' then
    text = text .. ':' .. burst_s
  end
  if period then
    text = string.format('%s@%d:%d', text, period, returned) .. (tail or '')
  end
  return text
end

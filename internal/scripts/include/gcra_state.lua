-- gcra_state reads a state of GCRA: when the whole burst will be there again, in us and num/den, and not before now. It is written as
-- "us" or "us:num:den", and with ":burst" behind it if a whole burst of its writer's limit takes longer than half a minute: burst is how
-- many seconds it takes, rounded up. A state that lies further ahead than a minute beyond that and beyond cap_us counts as none, and so
-- does what is no state. A fraction of another den is rounded up.
local function gcra_state(value, now, den, cap_us)
  local us, num, burst_s = tonumber(value), 0, 0
  if not us then
    local whole, first, second, third = string.match(value, '^(%d+):(%d+):?(%d*):?(%d*)$')
    us, burst_s = tonumber(whole or now), tonumber(first or 0)
    if second and second ~= '' then
      num, burst_s = tonumber(first), tonumber(third) or 0
      if tonumber(second) ~= den then
        us, num = us + 1, 0
      end
    end
  end
  if not (us >= now and us <= math.max(cap_us, now + math.min(burst_s, 3153600001) * 1000000) + 60000001) then
    return now, 0
  end
  return us, num
end
-- gcra_text is a state as it is written. burst_s is "0" for a burst that is not written.
local function gcra_text(us, num, den, burst_s)
  local text = us -- a number is cheaper than its text
  if num > 0 then
    text = string.format('%.0f:%.0f:%.0f', us, num, den)
  end
  if burst_s ~= '0' then
    text = string.format(num > 0 and '%s:%s' or '%.0f:%s', text, burst_s)
  end
  return text
end

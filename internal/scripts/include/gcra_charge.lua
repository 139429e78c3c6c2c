-- gcra_fill charges as many of count requests one after the other as end by an instant, and returns the state and their number. If
-- not all fit, the price is doubled as long as that may fit, and then what still fits is taken from the largest down, so that a
-- thousand requests cost twenty steps.
local function gcra_fill(us, num, den, count, price_us, price_num, cap_us, cap_num)
  if count <= 1000 then -- else a product may be inexact and still fit
    local all_us, all_num = us + count * price_us, num + count * price_num
    if all_num >= den and all_num < 9007199254740992 then
      local rest = all_num % den
      all_us, all_num = all_us + (all_num - rest) / den, rest
    end
    if all_num < den and (all_us < cap_us or all_us == cap_us and all_num <= cap_num) then
      return all_us, all_num, count
    end
  end
  local size, smaller, granted = 1, nil, 0
  while 2 * size <= count and us + 2 * price_us <= cap_us do
    smaller = {price_us, price_num, smaller}
    price_us, price_num, size = 2 * price_us, 2 * price_num, 2 * size
    if price_num >= den then
      price_us, price_num = price_us + 1, price_num - den
    end
  end
  repeat
    local to_us, to_num = us + price_us, num + price_num
    if to_num >= den then
      to_us, to_num = to_us + 1, to_num - den
    end
    if granted + size <= count and (to_us < cap_us or to_us == cap_us and to_num <= cap_num) then
      us, num, granted = to_us, to_num, granted + size
    end
    size = size / 2
    if smaller then
      price_us, price_num, smaller = smaller[1], smaller[2], smaller[3]
    end
  until size < 1
  return us, num, granted
end

-- gcra_written returns the text of a state and how many ms it is kept. burst_s is the whole burst of the limit in seconds, rounded up.
local function gcra_written(now, us, num, den, burst_s, period, returned, tail)
  local left = us - now
  if left > burst_s * 1000000 + 60000000 then
    burst_s = math.ceil(left / 1000000) -- or a call under another limit takes it for one of a clock that was set back
  end
  return gcra_text(us, num, den, burst_s, period, returned, tail), string.format('%d', (left - left % 1000) / 1000 + 1)
end

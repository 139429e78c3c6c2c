-- The tail of a state is "", or ":last:place,us;place,us;..": until when the permits that were charged ahead are used, or 0, and what
-- was given back, in order. The place of a charge is its end plus all us that had been given back when it was made, so places rise. A
-- charge has moved forward by what was given back since of the charges before it, and not by the others.

-- gcra_returns reads a tail.
local function gcra_returns(tail)
  local last, list = string.match(tail or '', '^:(%d+):?(.*)$')
  local returns = {}
  for place, us in string.gmatch(list or '', '(%d+),(%d+)') do
    returns[#returns + 1] = {place = tonumber(place), us = tonumber(us)}
  end
  return tonumber(last or 0), returns
end

-- gcra_tail returns the tail. It leaves out what was given back before all charges that have not ended. Of more than 16 returns it
-- joins two and takes the lower place: then less can be given back.
local function gcra_tail(last, returns, returned, now)
  table.sort(returns, function(a, b)
    return a.place < b.place
  end)
  local before = returned
  for _, r in ipairs(returns) do
    before = before - r.us
  end
  local kept = {}
  for _, r in ipairs(returns) do
    if r.place - before > now then
      kept[#kept + 1] = r
    end
    before = before + r.us
  end
  while #kept > 16 do
    local least = 2
    for i = 3, #kept do
      least = kept[i].us < kept[least].us and i or least
    end
    kept[least - 1].us = kept[least - 1].us + table.remove(kept, least).us
  end
  if #kept == 0 and last <= now then
    return ''
  end
  local words = {}
  for i, r in ipairs(kept) do
    words[i] = string.format('%.0f,%.0f', r.place, r.us)
  end
  return string.format(':%.0f:%s', last > now and last or 0, table.concat(words, ';'))
end

-- gcra_returns reads what was given back, in the order of the order numbers; see gcra_places.
local function gcra_returns(list)
  local returns = {}
  for place, us in string.gmatch(list, '(%d+),(%d+)') do
    returns[#returns + 1] = {place = tonumber(place), us = tonumber(us)}
  end
  return returns
end

-- gcra_list returns the text of what was given back. It leaves out what was given back before all charges that have not ended. Of more
-- than 16 returns it joins two and takes the lower place: then less can be given back.
local function gcra_list(returns, returned, now)
  if returns[2] then
    table.sort(returns, function(a, b)
      return a.place < b.place
    end)
  end
  local earlier = returned
  for _, r in ipairs(returns) do
    earlier = earlier - r.us
  end
  local kept = {}
  for _, r in ipairs(returns) do
    if r.place - earlier > now then
      kept[#kept + 1] = r
    end
    earlier = earlier + r.us
  end
  while #kept > 16 do
    local least = 2
    for i = 3, #kept do
      least = kept[i].us < kept[least].us and i or least
    end
    kept[least - 1].us = kept[least - 1].us + table.remove(kept, least).us
  end
  for i, r in ipairs(kept) do
    kept[i] = string.format('%.0f,%.0f', r.place, r.us)
  end
  return table.concat(kept, ';')
end

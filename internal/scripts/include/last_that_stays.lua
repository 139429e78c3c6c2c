-- last_that_stays returns the end of the last lease whose id does not leave, or now. leaves has the ids that do as keys.
local function last_that_stays(ids, leaves)
  local latest = redis.call('ZREVRANGE', leases, 0, #ids, 'WITHSCORES')
  for i = 1, #latest, 2 do
    if not leaves[latest[i]] then
      return math.max(now, tonumber(latest[i + 1]))
    end
  end
  return now
end

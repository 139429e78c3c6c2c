-- last_that_stays returns the latest end of a lease, of those whose ids are not keys of leaves, or now if there is none.
local function last_that_stays(ids, leaves)
  local latest = redis.call('ZREVRANGE', leases, 0, #ids, 'WITHSCORES')
  for i = 1, #latest, 2 do
    if not leaves[latest[i]] then
      return math.max(now, tonumber(latest[i + 1]))
    end
  end
  return now
end

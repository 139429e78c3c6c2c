-- sem_release.lua  KEYS[1]=permits KEYS[2]=lane KEYS[3]=channel ARGV: laneMillis, verb, {seq, n, ifExists, max}..  returns {1 added, 0 no key, -1 above max, ..}
local stored = redis.call('GET', KEYS[2]) or '0'
local last = tonumber(string.match(stored, '^%d+'))
local value = redis.call('GET', KEYS[1])
local free = tonumber(value or 0)
if not free or free % 1 ~= 0 then
  return redis.error_reply('WRONGKIND the key holds no number')
end
local codes, lane, seq, sum = {}, {}, last, 0
for i = 3, #ARGV, 4 do
  local n, max, code = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 3]), 1
  if tonumber(ARGV[i]) <= last then
    -- Done by an earlier execution, whose reply was lost.
    code = tonumber(string.match(stored, ' ' .. ARGV[i] .. ':(-?%d)') or 1)
  elseif ARGV[i + 2] == '1' and not value then
    code = 0
  elseif max > 0 and free + sum + n > max then
    code = -1
  else
    sum, value = sum + n, true
  end
  codes[#codes + 1] = code
  lane[#lane + 1] = ARGV[i] .. ':' .. code
  seq = math.max(seq, tonumber(ARGV[i]))
end
if sum > 0 then
  redis.call(ARGV[2], KEYS[3], redis.call('INCRBY', KEYS[1], string.format('%.0f', sum)))
end
if seq > last then
  redis.call('SET', KEYS[2], string.format('%.0f ', seq) .. table.concat(lane, ' '), 'PX', ARGV[1])
end
return codes

--[[
Decides one run of requests for permits of each of several keys, as rate_gcra does for requests that nothing follows. A key whose
state rate_gcra has to decide, such as one with places for later, is left to it.

KEYS     the states
ARGV     those of rate_gcra for one run, 7, but its number of requests, which follows for each key
Returns  for each key   now, us and num of the state, 0, requests granted;
         2 and four zeros if rate_gcra has to be called: nothing was done
Errors   an error of Redis that concerns all keys, before anything is granted
]]
-- include: gcra_state
-- include: gcra_charge
-- include: refusal
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local den, zone_us, zone_num, burst_s = ARGV[1] + 0, now + ARGV[2], ARGV[3] + 0, ARGV[4]
local price_us, price_num = ARGV[6] + 0, ARGV[7] + 0
local reply, size, any = {}, 0, false
for i, key in ipairs(KEYS) do
  local us, num, period, returned, tail, granted = now, 0, nil, nil, nil, 0
  local value = redis.pcall('GET', key)
  local decided = type(value) ~= 'table' -- else it is an error
  if decided and value then
    decided, us, num, period, returned, tail = pcall(gcra_state, key, value, now, den, zone_us) -- may be refused a command
    decided = decided and (tail == nil or tail == '' or tail and string.find(tail, '^:0:[%d,;]*$'))
  end
  if decided then
    us, num, granted = gcra_fill(us, num, den, ARGV[7 + i] + 0, price_us, price_num, zone_us, zone_num)
    if granted > 0 then
      local text, px = gcra_written(now, us, num, den, burst_s, period, returned, tail)
      value = redis.pcall('SET', key, text, 'PX', px)
      decided = not value.err
      any = any or decided
    end
  end
  if not decided and not any and refusal(value) then
    return value
  end
  if decided then
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4], reply[size + 5] = now, us, num, 0, granted
  else
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4], reply[size + 5] = 2, 0, 0, 0, 0
  end
  size = size + 5
end
return reply

-- clock_micros and clock_millis are the server's time. It stands still while a script runs.
local function clock_micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function clock_millis()
  return math.floor(clock_micros() / 1000)
end

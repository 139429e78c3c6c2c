-- clock is the server's time in microseconds, now in milliseconds. It stands still while a script runs.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local now = math.floor(clock / 1000)

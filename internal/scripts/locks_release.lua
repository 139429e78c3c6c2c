--[[
Releases plain locks that their ids hold, each as lock_release does, and wakes waiters.

KEYS     the names (each a hash: id -> 1)
ARGV     1 PUBLISH or SPUBLISH   and for each name   id
Returns  for each name   1 released, or 3: see yields in wake_first; 0 the id does not hold it; 2 if lock_release has to be called: nothing
         was done
]]
local verb = ARGV[1]
local channels, lines, reply, any_released = {}, {}, {}, false
for i, name in ipairs(KEYS) do
  -- include: lock_channel
  channels[i], lines[i] = channel, line
end
local nobody = redis.pcall('EXISTS', unpack(lines)) == 0 and {nil} -- mostly nobody waits for any of them
for i, name in ipairs(KEYS) do
  local released = redis.pcall('HDEL', name, ARGV[i + 1])
  if released == 1 then
    any_released = true
    local channel, line, ready_in, read_write, followers = channels[i], lines[i], 0, false, 0
    -- include: wake_first
    -- include: keep_in_hash
    released = 1 + yields
  elseif released ~= 0 then
    -- A key of another type concerns one lock. Any other error concerns all, but must not hide a release that is done.
    if not any_released and not string.find(released.err, 'WRONGTYPE', 1, true) then
      return released
    end
    released = 2
  end
  reply[i] = released
end
return reply

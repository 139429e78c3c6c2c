-- unheard is 1 if the waiter is first and the holder's release may not wake it, but will be published on the channel of the lock. Which
-- readers of a read/write lock will wake it is not known.
if place == 1 then
  unheard = mode == 'read' and 1 or 0
  local fields = unheard == 1 and {} or redis.pcall('HGETALL', name)
  for i = 2, #fields, 2 do
    local count = tonumber(fields[i]) or 0
    unheard = count > 0 and count < 1e9 and 1 or unheard
  end
end

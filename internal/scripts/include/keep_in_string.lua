-- Keeps a lock that is a string for the waiter that was woken.
if keep_for then
  redis.pcall('SET', name, 'next ' .. keep_for, 'PX', 50, 'NX')
end

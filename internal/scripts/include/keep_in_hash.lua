-- Keeps a lock that is a hash for the waiter that was woken. read_write says that the lock is a read/write lock. The first PEXPIRE changes
-- nothing, and proves that the lock will not be kept without an expiry.
if keep_for and redis.pcall('PEXPIRE', name, 50) == 0 then
  if read_write then
    redis.pcall('HSET', name, 'mode', keep_for == 'r' and 'read' or 'write', 'next', keep_for)
  else
    redis.pcall('HSET', name, 'next', keep_for)
  end
  redis.pcall('PEXPIRE', name, 50)
end

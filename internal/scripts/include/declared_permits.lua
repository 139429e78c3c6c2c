-- If no number of permits is set and the call declares one, the script goes on as if it were set. Permits of an earlier
-- semaphore that are still leased count as held, so that their releases add none.
if not stored and declared > 0 then
  if redis.call('EXISTS', other_permits) == 1 then
    return redis.error_reply('WRONGKIND the name is that of a semaphore of the other kind')
  end
  free = declared - redis.call('ZCARD', leases)
  stored = string.format('%.0f', free)
end

local set = redis.pcall('SET', fence, string.format('%.0f', token + reserved), 'PX', fence_ms)
if set.err then
  if free then
    redis.call('PEXPIRE', name, 0) -- the key goes
  end
  return set
end

local last_token, set = string.format('%.0f', token + reserved), nil
if fence_ms == '0' then
  set = redis.pcall('SET', fence, last_token)
else
  set = redis.pcall('SET', fence, last_token, 'PX', fence_ms)
end
if set.err then
  if free then
    redis.call('PEXPIRE', name, 0) -- removes the key
  end
  return set
end

-- write_free writes the number of free permits, by SET alone. The semaphore keeps its expiry. With an idle expiry it
-- expires after that time if all its permits are free. Otherwise it does not expire, because held permits have no lease.
local function write_free(number)
  local text = string.format('%.0f', number)
  if idle_ms == '0' or not total then
    redis.call('SET', permits, text, 'KEEPTTL')
    return
  end
  local record = string.format('%.0f %.0f', total, set_at)
  if number >= total then
    redis.call('SET', permits, text, 'PX', idle_ms)
    redis.call('SET', origin, record, 'PX', idle_ms)
  else
    redis.call('SET', permits, text)
    redis.call('SET', origin, record)
  end
end

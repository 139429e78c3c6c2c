-- The fence holds the last token. A token is the server's time in us, or the last token plus one if that is higher.

-- reserve_tokens reserves n tokens, as the first write of a script. It returns the last token before them, and the previous value
-- of the fence, or false. If it fails, nothing was written: it returns nil and the error, or nil and nil if the fence holds no
-- number.
local function reserve_tokens(fence, n)
  local stored = redis.pcall('SET', fence, string.format('%d', clock - 1 + n), 'KEEPTTL', 'GET')
  if type(stored) == 'table' then
    return nil, stored
  end
  local last = not stored and 0 or string.match(stored, '^%d+$') and tonumber(stored)
  if last and last < 2^53 then
    return last, stored
  end
  redis.call('SET', fence, stored, 'KEEPTTL')
  return nil
end

-- return_tokens undoes reserve_tokens.
local function return_tokens(fence, stored)
  if stored then
    redis.call('SET', fence, stored, 'KEEPTTL')
  else
    redis.call('SET', fence, 0, 'PX', 1)
  end
end

-- keep_tokens returns the number before the first of the n reserved tokens. last is the last token before them. If the clock is
-- behind last, the tokens follow last. The expiry of the fence begins again with each hour of the clock, and if anew is true.
local function keep_tokens(fence, n, last, fence_ms, anew)
  local before, hour = clock - 1, 3600000000
  if anew or last > before or math.floor(last / hour) ~= math.floor(clock / hour) then
    before = math.max(before, last)
    redis.call('SET', fence, before + n, 'PX', fence_ms)
  end
  return before
end

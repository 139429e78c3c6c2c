-- The fence holds the last token of the permits, which are the server's time in us, or one more than the last.

-- reserve_tokens writes n tokens, as the first write of a script, and returns the last token before them and what the fence
-- held, or false. Otherwise nothing was written: it returns nil and what was refused, or nil if the fence holds no number.
local function reserve_tokens(fence, n)
  local stored = redis.pcall('SET', fence, clock - 1 + n, 'KEEPTTL', 'GET')
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

-- keep_tokens returns the number before the first of n tokens that were reserved after the last one. They rise also while the
-- clock lies behind the last. The fence keeps its expiry for an hour of the clock, unless it is to begin anew.
local function keep_tokens(fence, n, last, fence_ms, anew)
  local before, hour = clock - 1, 3600000000
  if anew or last > before or math.floor(last / hour) ~= math.floor(clock / hour) then
    before = math.max(before, last)
    redis.call('SET', fence, before + n, 'PX', fence_ms)
  end
  return before
end

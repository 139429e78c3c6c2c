-- total is the number of permits that clients with an idle expiry have set, or nil if it is not known. set_at is the instant,
-- ms, at which they set it, or 0.
local total, set_at = string.match(origin and redis.call('GET', origin) or '', '^(-?%d*) (%d+)$')
total, set_at = tonumber(total), tonumber(set_at or 0)

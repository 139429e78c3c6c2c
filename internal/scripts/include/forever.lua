-- forever is the instant, ms, that Redisson stores for a permit that never expires.
local forever = 922337203685477

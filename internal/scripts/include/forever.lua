-- forever is the instant, ms, at which Redisson has a permit end that never expires.
local forever = 922337203685477

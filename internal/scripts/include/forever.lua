-- Redisson has a permit that never expires end at this instant, ms.
local forever = 922337203685477

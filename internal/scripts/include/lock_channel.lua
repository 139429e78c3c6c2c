-- The channel of a plain lock and its line, as LockChannel of this package and include/line.lua name them.
local tagged = string.find(name, '{', 1, true) and name or '{' .. name .. '}'
local channel, line = 'redisson_lock__channel:' .. tagged, tagged .. ':waiting'

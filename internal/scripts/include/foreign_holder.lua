-- foreign says that the holder is of another library: nothing tells when it releases the lock. The ids of holders and waiters of this one
-- begin with the UUID of their client, a colon and a number.
local own = string.match(holder, '^next (.*)$') or holder
local foreign = not (string.find(own, '^[%x%-]+:%d') and string.sub(own, 37, 37) == ':')

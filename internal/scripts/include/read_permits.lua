-- stored is the text of the number of free permits, or false if it was never set.
local stored = redis.call('GET', permits)

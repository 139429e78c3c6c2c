-- stored is as that of read_permits, and record what is kept. It is one command, because every acquisition needs both. A user without the
-- right to it, and a slot that migrates, need two more.
local line, kept_key, fair = line_keys(channel)
local both = redis.pcall('MGET', permits, kept_key)
local stored, record = both[1], both[2]
if not stored then
  stored, record = redis.pcall('GET', permits), redis.pcall('GET', kept_key)
end

-- stored is as that of read_permits, and record what is kept. Two GETs take the server less time than one MGET.
local line, kept_key, fair = line_keys(channel)
local stored, record = redis.pcall('GET', permits), redis.pcall('GET', kept_key)

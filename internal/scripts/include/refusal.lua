-- refusal returns a reply that refuses more than the key of one call: its error, unless the key is of another type.
local function refusal(reply)
  return type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) and reply or nil
end

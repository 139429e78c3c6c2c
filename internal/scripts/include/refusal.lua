-- refusal returns an error reply that concerns all calls, and nothing for other replies: the wrong type of a key concerns one call.
local function refusal(reply)
  return type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) and reply or nil
end

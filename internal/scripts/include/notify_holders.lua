-- notify_holders notifies the clients of holders that a lock was freed by force. fields is the reply of HGETALL. It returns the reply
-- {1, ids ..}, with the ids whose clients the caller has to notify. A message is up to 100 ids, separated by commas, a space, and the
-- name of the lock.
local function notify_holders(fields)
  local reply, ids = {1}, {}
  local function publish(client)
    local message = table.concat(ids[client], ',') .. ' ' .. name
    redis.pcall(verb, clients .. client, message) -- a hint must not fail the call
    ids[client] = nil
  end
  for i = 1, #fields, 2 do
    local id = fields[i]
    local client = string.match(id, '^([^:]+):')
    if client and verb == 'SPUBLISH' then
      reply[#reply + 1] = id -- the channel may be in a slot that this script cannot reach
    elseif client then
      ids[client] = ids[client] or {}
      table.insert(ids[client], id)
      if #ids[client] == 100 then
        publish(client)
      end
    end
  end
  for client in pairs(ids) do
    publish(client)
  end
  return reply
end

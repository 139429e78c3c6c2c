-- unmarked_part returns the id of a quorum's part among the holders, unless that is marked. Before such a part is freed by force, the
-- caller has to mark its hold as forced, so that lock_regain does not take it again. fields is the reply of HGETALL.
local function unmarked_part(fields, marked)
  for i = 1, #fields, 2 do
    if fields[i] ~= marked and string.find(fields[i], '^[^:]+:%d+:s%d') then
      return fields[i]
    end
  end
end

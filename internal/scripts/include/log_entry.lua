-- size returns the permits of an entry of a log: its last four bytes, low byte first. Before them the entry has the length of its id
-- and the id. The length has one byte (this library, and Redisson from 3.17 on) or eight (Redisson 3.16.4 to 3.16.8); older versions
-- of Redisson write an id of four bytes without a length. size returns nil for any other form, as of a later version; such an entry
-- counts as the whole rate until it leaves.
local function size(member)
  local length, first = #member, string.byte(member)
  if length == 8 or first == length - 5 or first == length - 12 and string.sub(member, 2, 8) == string.rep(string.char(0), 7) then
    local a, b, c, d = string.byte(member, -4, -1)
    return a + b * 256 + c * 65536 + d * 16777216
  end
end

-- time_of returns the score of an entry in us.
local function time_of(score)
  return math.floor(score * 1000 + 0.5)
end

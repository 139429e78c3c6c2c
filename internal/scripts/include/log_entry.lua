-- size is how many permits an entry of a log holds; time_of is its score in us.
local function size(member)
  local a, b, c, d = string.byte(member, -4, -1)
  return #member > 4 and a + b * 256 + c * 65536 + d * 16777216 or 0
end

local function time_of(score)
  return math.floor(score * 1000 + 0.5)
end

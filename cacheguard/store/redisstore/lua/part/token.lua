-- A new token is above every token that the record and the entry know of, and
-- not below the clock.
local token = math.max(there + 1, t)
if whole then
  token = math.max(token, last + 1, fence + 1)
end

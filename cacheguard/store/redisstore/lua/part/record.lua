-- The record as a writer sees it; whole is false where there is none.
local lives, whole = redis.call('PTTL', KEYS[2]), false
local v, birth, fence, last, kept, ends, cooling
if lives ~= -2 then
  v = redis.pcall('HMGET', KEYS[2], 'birth', 'fence', 'last', 'keep', 'holder', 'waiting', 'until', 'cooling_until')
  birth, fence, last, kept = v[1], tonumber(v[2]), tonumber(v[3]), tonumber(v[4])
  ends, cooling = tonumber(v[7] or 0), tonumber(v[8] or 0)
  whole = birth and fence and last and kept and ends and cooling
end

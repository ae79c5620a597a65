-- renew: extend the lease if it is still the holder's. Never creates a record.
-- KEYS  entry, record
-- ARGV  birth, holder, length
-- returns {1, now} extended, {0, now} lost
-- include: clock
local v = redis.pcall('HMGET', KEYS[2], 'birth', 'fence', 'keep', 'holder')
local birth, fence, kept = v[1], tonumber(v[2]), tonumber(v[3])
if not (birth and fence and kept) then
  if v[1] or v.err or redis.call('EXISTS', KEYS[2]) == 1 then
    -- include: broken
  end
end
if birth ~= ARGV[1] or v[4] ~= ARGV[2] then
  return { 0, t }
end
local length = tonumber(ARGV[3])
local span, lives = length + kept, redis.call('PTTL', KEYS[2])
-- include: live
redis.call('HSET', KEYS[2], 'until', t + length, 'length', ARGV[3])
return { 1, t }

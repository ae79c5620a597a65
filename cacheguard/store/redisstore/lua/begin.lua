-- begin: take a new token before the origin is written; nothing else.
-- KEYS  entry, record
-- ARGV  keep, random
-- returns {1, now, token, birth}
-- include: clock
-- include: record
if v and not whole then
  -- include: broken
end
-- include: there
-- include: token
local keep = tonumber(ARGV[1])
if not whole then
  local digits = string.format('%.0f', token)
  birth = digits .. '-' .. ARGV[2] -- no other creation's, not even of this request sent again
  redis.call('HSET', KEYS[2], 'birth', birth, 'fence', '0', 'last', digits, 'keep', ARGV[1])
  redis.call('PEXPIRE', KEYS[2], math.ceil(keep / 1000))
  return { 1, t, token, birth }
end
redis.call('HSET', KEYS[2], 'last', token)
if keep > kept then
  -- include: keep
elseif math.max(ends, cooling) <= t then
  local span = kept
  -- include: live
end
return { 1, t, token, birth }

-- invalidate: a new token, no entry, no lease; what is not a record is removed.
-- KEYS  entry, record
-- ARGV  channel, id
-- returns {1, now, token}
-- include: clock
-- include: record
-- include: there
-- include: token
redis.call('UNLINK', KEYS[1])
if v and not whole then
  redis.call('UNLINK', KEYS[2])
end
local channel, id, event = ARGV[1], ARGV[2], 6 -- INVALIDATED
-- include: pack
-- include: overtake
return { 1, t, token }

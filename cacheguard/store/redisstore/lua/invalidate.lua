-- invalidate: a new token, no entry, no lease; what is not a record is removed.
-- KEYS  entry, record
-- ARGV  channel, id
-- returns {1, now, token}
local t = now()
local r, err = record(KEYS[2])
if err then
  redis.call('UNLINK', KEYS[2])
end
return { 1, t, drop(ARGV[1], ARGV[2], r, t) }

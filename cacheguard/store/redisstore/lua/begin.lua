-- begin: take a new token before the origin is written; nothing else.
-- KEYS  entry, record
-- ARGV  keep, random
-- returns {1, now, token, birth}
local keep = tonumber(ARGV[1])
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
r = r or new_record(ARGV[2], keep, t)
r.keep = math.max(r.keep, keep)
local token = next_token(r, (entry_head(KEYS[1])), t)
redis.call('HSET', KEYS[2], 'birth', r.birth, 'fence', str(r.fence), 'last', str(token), 'keep', str(r.keep))
touch(KEYS[2], r, t)
return { 1, t, token, r.birth }

-- renew: extend the lease if it is still the holder's. Never creates a record.
-- KEYS  entry, record
-- ARGV  birth, holder, length
-- returns {1, now} extended, {0, now} lost
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
if not r or r.birth ~= ARGV[1] or r.holder ~= ARGV[2] then
  return { 0, t }
end
local length = tonumber(ARGV[3])
r.ends, r.length = t + length, length
touch(KEYS[2], r, t)
redis.call('HSET', KEYS[2], 'until', str(r.ends), 'length', str(length))
return { 1, t }

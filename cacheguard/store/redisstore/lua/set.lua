-- set: write under a new token; with a begun token only if nothing newer was
-- written since, otherwise as invalidate. What has no life acts as invalidate
-- too. Never creates a record.
-- KEYS  entry, record[, staged bytes]
-- ARGV  begun token (empty: none), begun birth, ttl, grace, channel, id, body
-- returns {1, now, token} written
--         {2, now, token} fenced: acted as invalidate
--         {3, now} the staged bytes are not there: nothing changed
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
if ARGV[1] ~= '' and (not r or r.birth ~= ARGV[2] or r.fence > tonumber(ARGV[1])) then
  unstage()
  return { 2, t, drop(ARGV[5], ARGV[6], r, t) }
end
local ttl, grace = tonumber(ARGV[3]), tonumber(ARGV[4])
if ttl + grace == 0 then
  unstage()
  return { 1, t, drop(ARGV[5], ARGV[6], r, t) }
end
if #KEYS == 3 and redis.call('EXISTS', KEYS[3]) == 0 then
  return { 3, t }
end

local token = next_token(r, (entry_head(KEYS[1])), t)
local fresh = t + ttl
local gone = fresh + grace
local life = math.max(1, math.floor((gone - t) / 1000))
write(new_head(false, token, t, fresh, gone), ARGV[7], life)
move_fence(KEYS[2], r, token, t)
publish(ARGV[5], WRITTEN, token, ARGV[6])
return { 1, t, token }

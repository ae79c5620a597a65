-- set: write under a new token; with a begun token only if nothing newer was
-- written since, otherwise as invalidate. What has no life acts as invalidate
-- too. Never creates a record.
-- KEYS  entry, record[, staged bytes]
-- ARGV  begun token (empty: none), begun birth, ttl, grace, channel, id, body (none if staged)
-- returns {1, now, token} written
--         {2, now, token} fenced: acted as invalidate
--         {3, now} the staged bytes are not there: nothing changed
-- include: clock
-- include: record
if v and not whole then
  -- include: broken
end
-- include: there
-- include: token
-- include: pack
local ttl, grace, channel, id = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local fenced = ARGV[1] ~= '' and not (whole and birth == ARGV[2] and fence <= tonumber(ARGV[1]))
local event = 5 -- WRITTEN
if fenced or ttl + grace == 0 then
  event = 6 -- INVALIDATED
  redis.call('UNLINK', KEYS[1])
  if KEYS[3] then
    redis.call('UNLINK', KEYS[3])
  end
else
  -- include: head
  local fresh = t + ttl
  head = new_head(0, token, t, fresh, fresh + grace)
  local life = math.max(1, math.floor((ttl + grace) / 1000))
  if KEYS[3] then
    -- include: rename
    redis.call('SETRANGE', KEYS[1], 0, head)
  else
    redis.call('SET', KEYS[1], head .. ARGV[7], 'PX', life)
  end
end
-- include: overtake
return { fenced and 2 or 1, t, token }

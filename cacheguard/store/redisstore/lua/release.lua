-- release: end the lease if it is still the holder's, count the failure of its
-- load once even if the lease is gone, wake those who waited for the lease.
-- KEYS  entry, record
-- ARGV  birth (empty: unknown), holder, cooldown (-1: no failure), reason, channel, id
-- returns {1, now} a lease was ended, {0, now} there was none of this holder
-- include: clock
local v = redis.pcall('HMGET', KEYS[2], 'birth', 'fence', 'keep', 'holder', 'until', 'waiting', 'failed', 'reason',
  'failed_before', 'cooling_until', 'cooling_for')
local birth, fence, kept, ends = v[1], tonumber(v[2]), tonumber(v[3]), tonumber(v[5] or 0)
local cooling, most = tonumber(v[10] or 0), tonumber(v[11] or 0)
if not (birth and fence and kept and ends and cooling and most) then
  if v[1] or v.err or redis.call('EXISTS', KEYS[2]) == 1 then
    -- include: broken
  end
end
if not birth or (ARGV[1] ~= '' and birth ~= ARGV[1]) then
  return { 0, t }
end

local holder, cooldown, failed, before = ARGV[2], tonumber(ARGV[3]), v[7], v[9]
local ended = v[4] == holder
local ahead = ends > t or cooling > t -- and the record lives for its keep past that
if ended then
  redis.call('HDEL', KEYS[2], 'holder', 'until', 'waiting')
end
if cooldown >= 0 and failed ~= holder and before ~= holder then
  redis.call('HDEL', KEYS[2], 'failed_before', 'reason_before')
  if failed then
    redis.call('HSET', KEYS[2], 'failed_before', failed, 'reason_before', v[8] or '')
  end
  redis.call('HSET', KEYS[2], 'failed', holder, 'reason', ARGV[4])
  local left = cooling - t
  if left > most then -- the server's clock stepped back
    left = 0
  end
  if cooldown > left then
    cooling, ahead = t + cooldown, false
    redis.call('HSET', KEYS[2], 'cooling_until', cooling, 'cooling_for', ARGV[3])
  end
end
if not ahead then
  local span, lives = math.max(0, cooling - t) + kept, redis.call('PTTL', KEYS[2])
  -- include: live
end
if ended and v[6] then
  redis.pcall('PUBLISH', ARGV[5], '\4\0\0\0\0\0\0\0\0' .. ARGV[6]) -- RELEASED is 4
end
return { ended and 1 or 0, t }

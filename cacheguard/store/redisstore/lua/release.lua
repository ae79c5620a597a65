-- release: end the lease if it is still the holder's, count the failure of its
-- load once even if the lease is gone, wake those who waited for the lease.
-- KEYS  entry, record
-- ARGV  birth (empty: unknown), holder, cooldown (-1: no failure), reason, channel, id
-- returns {1, now} a lease was ended, {0, now} there was none of this holder
local holder, cooldown = ARGV[2], tonumber(ARGV[3])
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
if not r or (ARGV[1] ~= '' and r.birth ~= ARGV[1]) then
  return { 0, t }
end

local ended, waiting = r.holder == holder, r.waiting
if ended then
  end_lease(KEYS[2], r)
end
if cooldown >= 0 and r.failed ~= holder and r.failed_before ~= holder then
  redis.call('HDEL', KEYS[2], 'failed_before', 'reason_before')
  if r.failed then
    redis.call('HSET', KEYS[2], 'failed_before', r.failed, 'reason_before', r.reason)
  end
  redis.call('HSET', KEYS[2], 'failed', holder, 'reason', ARGV[4])
  if cooldown > cooling_left(r, t) then
    r.cooling_until, r.cooling_for = t + cooldown, cooldown
    redis.call('HSET', KEYS[2], 'cooling_until', str(r.cooling_until), 'cooling_for', str(cooldown))
  end
end
touch(KEYS[2], r, t)
if ended and waiting then
  publish(ARGV[5], RELEASED, 0, ARGV[6])
end
return { ended and 1 or 0, t }

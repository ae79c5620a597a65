-- claim: look again, then take the lease, in one step.
-- KEYS  entry, record
-- ARGV  seen, holder, length, keep, wait (1 or 0), random
-- returns {1, now, token, birth, takeover, second opinion} granted
--         {2, now} changed
--         {3, now, left, holder, token} held
--         {4, now, left, failed holder, reason} cooling
local seen, holder, length, keep = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local t = now()

local there = entry_head(KEYS[1])
if there ~= 0 and there ~= seen then
  return { 2, t }
end

local r, err = record(KEYS[2])
if err then
  return err
end

if r and keep > r.keep then
  redis.call('HSET', KEYS[2], 'keep', str(keep))
  r.keep = keep
  touch(KEYS[2], r, t)
end

local lease = r and lease_left(r, t) or 0
local mine = lease > 0 and r.holder == holder -- its reply was lost
if lease > 0 and not mine then
  if ARGV[5] == '1' then
    redis.call('HSET', KEYS[2], 'waiting', str((tonumber(r.waiting) or 0) + 1))
  end
  return { 3, t, lease, r.holder, r.token }
end

local second = 0
local cooling = r and r.failed and cooling_left(r, t) or 0
if cooling > 0 then
  local last = process(r.failed)
  local fleet = r.failed_before and process(r.failed_before) ~= last
  local bound = fleet or last == process(holder)
  if bound and not mine then
    return { 4, t, cooling, r.failed, r.reason }
  end
  second = bound and 0 or 1
end

local takeover = 0
if r and r.holder and r.holder ~= holder then
  takeover = 1
end
r = r or new_record(ARGV[6], keep, t)
local token = next_token(r, there, t)
r.holder, r.ends, r.length = holder, t + length, length
redis.call('HSET', KEYS[2], 'birth', r.birth, 'fence', str(r.fence), 'last', str(token), 'keep', str(r.keep),
  'holder', holder, 'token', str(token), 'until', str(r.ends), 'length', str(length))
touch(KEYS[2], r, t)
return { 1, t, token, r.birth, takeover, second }

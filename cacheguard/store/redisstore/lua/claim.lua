-- claim: look again, then take the lease, in one step.
-- KEYS  entry, record
-- ARGV  seen, holder, length, keep, wait (1 or 0), random
-- returns {1, now, token, birth, takeover, second opinion, same} granted
--         {2, now} changed
--         {3, now, left, holder, token, same} held
--         {4, now, left, failed holder, reason} cooling
-- include: clock
-- include: there
if there ~= 0 and there ~= tonumber(ARGV[1]) then
  return { 2, t }
end
local same = there ~= 0 and 1 or 0

local holder, length, keep = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local lives = redis.call('PTTL', KEYS[2])
if lives == -2 then -- there is no record
  local token = math.max(there + 1, t)
  local digits = string.format('%.0f', token)
  local birth = digits .. '-' .. ARGV[6] -- no other creation's, not even of this request sent again
  redis.call('HSET', KEYS[2], 'birth', birth, 'fence', '0', 'last', digits, 'keep', ARGV[4],
    'holder', holder, 'token', digits, 'until', t + length, 'length', ARGV[3])
  redis.call('PEXPIRE', KEYS[2], math.ceil((length + keep) / 1000))
  return { 1, t, token, birth, 0, 0, same }
end

local v = redis.pcall('HMGET', KEYS[2], 'birth', 'fence', 'last', 'keep', 'holder', 'token', 'until', 'length', 'waiting', 'failed')
local birth, fence, last, kept = v[1], tonumber(v[2]), tonumber(v[3]), tonumber(v[4])
local held, ends, granted = tonumber(v[6] or 0), tonumber(v[7] or 0), tonumber(v[8] or 0)
local whole = birth and fence and last and kept and held and ends and granted
if not whole then
  -- include: broken
end
if keep > kept then
  -- include: keep
else
  keep = kept
end

-- An end that lies further ahead than the length (the server's clock stepped
-- back) has passed.
local left = ends - t
if not v[5] or left > granted then
  left = 0
end
local mine = left > 0 and v[5] == holder -- its reply was lost
if left > 0 and not mine then
  if ARGV[5] == '1' then
    redis.call('HSET', KEYS[2], 'waiting', (tonumber(v[9]) or 0) + 1)
  end
  return { 3, t, left, v[5], held, same }
end

local second = 0
if v[10] then
  local f = redis.call('HMGET', KEYS[2], 'reason', 'failed_before', 'cooling_until', 'cooling_for')
  local cooling, most = tonumber(f[3] or 0), tonumber(f[4] or 0)
  if not (cooling and most) then
    -- include: broken
  end
  cooling = cooling - t
  if cooling > 0 and cooling <= most then
    -- process is the part of a holder before its last slash.
    local function process(of)
      return string.match(of, '^(.*)/') or of
    end
    local by = process(v[10])
    local fleet = f[2] and process(f[2]) ~= by
    local bound = fleet or by == process(holder)
    if bound and not mine then
      return { 4, t, cooling, v[10], f[1] or '' }
    end
    second = bound and 0 or 1
  end
end

-- include: token
local digits = string.format('%.0f', token)
redis.call('HSET', KEYS[2], 'last', digits, 'holder', holder, 'token', digits, 'until', t + length, 'length', ARGV[3])
local span = length + keep
-- include: live
return { 1, t, token, birth, v[5] and v[5] ~= holder and 1 or 0, second, same }

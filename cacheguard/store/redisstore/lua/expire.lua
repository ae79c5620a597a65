-- expire: a new token, no lease, and the entry is stale from now on: its grace
-- begins, its bytes and its token stay, its life is not lengthened. A
-- hand-over, a pass and what is no entry are deleted.
-- KEYS  entry, record
-- ARGV  channel, id
-- returns {1, now, token}
-- include: clock
-- include: record
if v and not whole then
  -- include: broken
end
-- include: there
-- include: token
-- include: pack

-- stale_life is how many milliseconds the entry stays, zero if it must go, and
-- its new times. Of a head, byte 3 is the version, 4 the flags, 21 to 36 fresh
-- and gone, 37 the kind.
local function stale_life()
  if #head < 37 or string.byte(head, 3) ~= 1 or string.byte(head, 4) ~= 0 then
    return 0
  end
  local kind = string.byte(head, 37)
  if kind ~= 1 and kind ~= 2 then
    return 0
  end
  local function number(at)
    local n = 0
    for i = at, at + 7 do
      n = n * 256 + string.byte(head, i)
    end
    return n
  end
  local fresh, gone = number(21), number(29)
  if fresh > t then
    gone, fresh = t + (gone - fresh), t
  end
  local life = math.min(redis.call('PTTL', KEYS[1]), math.floor((gone - t) / 1000))
  if life < 1 then
    return 0
  end
  return life, pack(fresh) .. pack(gone)
end

local life, times = 0, nil
if there ~= 0 then
  life, times = stale_life()
end
if life == 0 then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], life)
  redis.call('SETRANGE', KEYS[1], 20, times)
end
local channel, id, event = ARGV[1], ARGV[2], 7 -- EXPIRED
-- include: overtake
return { 1, t, token }

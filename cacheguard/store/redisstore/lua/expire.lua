-- expire: a new token, no lease, and the entry is stale from now on: its grace
-- begins, its bytes and its token stay, its life is not lengthened. A
-- hand-over, a pass and what is no entry are deleted.
-- KEYS  entry, record
-- ARGV  channel, id
-- returns {1, now, token}
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
local there, head = entry_head(KEYS[1])
local token = next_token(r, there, t)

-- stale_life is how many milliseconds the entry stays, zero if it must go.
local function stale_life()
  if #head <= HEAD or string.byte(head, 3) ~= VERSION or string.byte(head, 4) ~= 0 then
    return 0
  end
  local kind = string.byte(head, HEAD + 1)
  if kind ~= 1 and kind ~= 2 then
    return 0
  end
  local fresh, gone = number(head, 21), number(head, 29)
  if fresh > t then
    gone, fresh = t + (gone - fresh), t
  end
  local life = math.min(redis.call('PTTL', KEYS[1]), math.floor((gone - t) / 1000))
  if life < 1 then
    return 0
  end
  return life, pack(fresh) .. pack(gone)
end

local life, times = stale_life()
if life == 0 then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], str(life))
  redis.call('SETRANGE', KEYS[1], 20, times)
end
move_fence(KEYS[2], r, token, t)
publish(ARGV[1], EXPIRED, token, ARGV[2])
return { 1, t, token }

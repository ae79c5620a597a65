-- prelude.lua is put in front of every other script of this folder.
--
-- Every script is plain Lua 5.1 over commands of Redis 6.2 and older: no
-- struct, cmsgpack or bit library. KEYS[1] is the entry, KEYS[2] the lease
-- record, KEYS[3] the staged bytes of a large value; all three share one slot.
-- Times and lengths are microseconds of this server's clock, below 2^53, so
-- that a Lua number holds them exactly. The second element of every reply is
-- the server's time: the client's clock sample.
--
-- A full server refuses the first write of a script that may grow memory. A
-- script that must be able to end something (invalidate, expire, release,
-- renew) therefore begins with a write that cannot grow it.

-- The same numbers stand in entry.go; TestLuaAndGoReadTheSameToken compares them.
local MAGIC = '\199g'
local VERSION = 1
local HEAD = 36 -- what the server writes; the kind follows
local TOKEN_LIMIT = 4503599627370496 -- 2^52: a token of a readable entry is below it

-- The event kinds of package store.
local FILLED, RELEASED, WRITTEN, INVALIDATED, EXPIRED = 3, 4, 5, 6, 7
local CARRIED = 8 -- filled, with the entry between token and id: see parseEvent

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- str writes a number with all its digits; tostring keeps only fourteen.
local function str(n)
  return string.format('%.0f', n)
end

-- pack is n as eight bytes, most significant first.
local function pack(n)
  local d = n % 256
  local c = n % 65536
  local b = n % 16777216
  local a = n % 4294967296
  local h = (n - a) / 4294967296
  local g = h % 256
  local f = h % 65536
  local e = h % 16777216
  return string.char((h - e) / 16777216, (e - f) / 65536, (f - g) / 256, g,
    (a - b) / 16777216, (b - c) / 65536, (c - d) / 256, d)
end

-- number reads eight bytes that begin at position at.
local function number(s, at)
  local n = 0
  for i = at, at + 7 do
    n = n * 256 + string.byte(s, i)
  end
  return n
end

-- entry_head returns the token of whatever is under key (0 when it is no entry
-- or its token cannot be told) and its first bytes, up to and with its kind. The rule is that of
-- tokenOf in entry.go: claimers compare what one of them read with what the
-- other sees, so both must count the same bytes as no entry.
local function entry_head(key)
  local head = redis.pcall('GETRANGE', key, 0, HEAD)
  if type(head) ~= 'string' or #head < 12 or string.sub(head, 1, 2) ~= MAGIC then
    return 0, ''
  end
  local token = number(head, 5)
  if token >= TOKEN_LIMIT then
    return 0, ''
  end
  return token, head
end

-- new_head is the part of an entry that only the server can write; the client
-- sends the rest, which it has checksummed.
local function new_head(handover, token, asked, fresh, gone)
  return MAGIC .. string.char(VERSION, handover and 1 or 0) .. pack(token) .. pack(asked) .. pack(fresh) .. pack(gone)
end

-- process is the part of a holder before its last slash.
local function process(holder)
  return string.match(holder, '^(.*)/') or holder
end

local DATA = 'DATA the lease record is not one: '

-- record reads the lease record. It returns nil if there is none, and an error
-- in the second place if what is there is not one.
local function record(key)
  local v = redis.pcall('HMGET', key, 'birth', 'fence', 'last', 'keep', 'holder', 'token', 'until',
    'length', 'waiting', 'failed', 'reason', 'failed_before', 'reason_before', 'cooling_until', 'cooling_for')
  if v.err then
    return nil, redis.error_reply(DATA .. 'wrong type')
  end
  if not v[1] then
    if redis.call('EXISTS', key) == 1 then
      return nil, redis.error_reply(DATA .. 'no birth mark')
    end
    return nil
  end
  local r = {
    birth = v[1], fence = tonumber(v[2] or ''), last = tonumber(v[3] or ''), keep = tonumber(v[4] or ''),
    holder = v[5], token = tonumber(v[6] or '0'), ends = tonumber(v[7] or '0'), length = tonumber(v[8] or '0'),
    waiting = v[9],
    failed = v[10], reason = v[11] or '', failed_before = v[12], reason_before = v[13] or '',
    cooling_until = tonumber(v[14] or '0'), cooling_for = tonumber(v[15] or '0'),
  }
  if not (r.fence and r.last and r.keep and r.token and r.ends and r.length and r.cooling_until and r.cooling_for) then
    return nil, redis.error_reply(DATA .. 'a field is not a number')
  end
  return r
end

-- left is how much is left of something that ends at ends and is length long.
-- An end that lies further ahead than the length (the server's clock stepped
-- back) has passed.
local function left(ends, length, t)
  local d = ends - t
  if d <= 0 or d > length then
    return 0
  end
  return d
end

local function lease_left(r, t)
  if not r.holder then
    return 0
  end
  return left(r.ends, r.length, t)
end

local function cooling_left(r, t)
  return left(r.cooling_until, r.cooling_for, t)
end

-- touch makes the record live for its keep past the later of now, the end of
-- its lease and the end of its cooldown. It never shortens its life. It always
-- writes, and cannot grow memory (see above).
local function touch(key, r, t)
  local life = math.ceil((math.max(lease_left(r, t), cooling_left(r, t)) + r.keep) / 1000)
  redis.call('PEXPIRE', key, str(math.max(life, redis.call('PTTL', key))))
end

-- next_token is above every token that the record and the entry know of, and
-- not below the clock.
local function next_token(r, entry_token, t)
  local known = entry_token
  if r then
    known = math.max(known, r.last, r.fence)
  end
  return math.max(known + 1, t)
end

-- new_record is a record that no other creation has made, not even one by the
-- same request sent again: random is made anew for each sending.
local function new_record(random, keep, t)
  return { birth = str(t) .. '-' .. random, fence = 0, last = 0, keep = keep, token = 0, ends = 0, length = 0,
    cooling_until = 0, cooling_for = 0 }
end

-- publish wakes the listeners. A hint that may not be sent (ACL) must not undo
-- what was written.
local function publish(channel, kind, token, id)
  redis.pcall('PUBLISH', channel, string.char(kind) .. pack(token) .. id)
end

-- end_lease takes the lease and the mark of being waited for off the record.
local function end_lease(key, r)
  redis.call('HDEL', key, 'holder', 'token', 'until', 'length', 'waiting')
  r.holder, r.ends, r.length = false, 0, 0
end

-- move_fence makes token the fence and ends any lease: what set, invalidate
-- and expire do to the record, if there is one.
local function move_fence(key, r, token, t)
  if not r then
    return
  end
  end_lease(key, r)
  redis.call('HSET', key, 'fence', str(token), 'last', str(token))
  touch(key, r, t)
end

-- drop deletes the entry under a new token: what invalidate does, and a begun
-- set that lost its race.
local function drop(channel, id, r, t)
  local token = next_token(r, (entry_head(KEYS[1])), t)
  redis.call('UNLINK', KEYS[1])
  move_fence(KEYS[2], r, token, t)
  publish(channel, INVALIDATED, token, id)
  return token
end

-- write puts an entry of life milliseconds under KEYS[1]: head and body as one
-- value, or the staged bytes with their head filled in. RENAME keeps the side
-- key's expiry, so the entry's own is set after it.
local function write(head, body, life)
  if #KEYS < 3 then
    redis.call('SET', KEYS[1], head .. body, 'PX', str(life))
    return
  end
  redis.call('SETRANGE', KEYS[3], 0, head)
  redis.call('RENAME', KEYS[3], KEYS[1])
  redis.call('PEXPIRE', KEYS[1], str(life))
end

-- unstage drops staged bytes that will not be used.
local function unstage()
  if #KEYS == 3 then
    redis.call('UNLINK', KEYS[3])
  end
end

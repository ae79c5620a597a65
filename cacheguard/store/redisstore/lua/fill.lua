-- fill: write what was loaded under a grant, unless the fence has passed it.
-- KEYS  entry, record[, staged value]
-- ARGV  birth, holder, token, asked, ttl, grace, handover, channel, id, small (1 or 0), value (none if staged)
-- returns {1, now} written, or written before
--         {2, now} fenced: nothing changed
--         {3, now} the staged value is not there: nothing changed
-- include: clock
local v = redis.pcall('HMGET', KEYS[2], 'birth', 'fence', 'keep', 'until', 'holder', 'waiting', 'failed')
local birth, fence, kept, ends = v[1], tonumber(v[2]), tonumber(v[3]), tonumber(v[4] or 0)
if not (birth and fence and kept and ends) then
  if v[1] or v.err or redis.call('EXISTS', KEYS[2]) == 1 then
    -- include: broken
  end
end

local token = tonumber(ARGV[3])
if birth ~= ARGV[1] or fence >= token then
  if KEYS[3] then
    redis.call('UNLINK', KEYS[3])
  end
  if birth ~= ARGV[1] then
    -- The record was lost (eviction, flush), and the mark of being waited for
    -- with it: whoever waits for this lease waits for nothing. RELEASED is 4.
    redis.pcall('PUBLISH', ARGV[8], '\4\0\0\0\0\0\0\0\0' .. ARGV[9])
  elseif fence == token then -- this very fill; its reply was lost
    return { 1, t }
  end
  return { 2, t }
end

-- The value brings its head along. It has to have another if no life is left, or
-- if the claim lies ahead of the clock: that was before the clock stepped back,
-- and the value is not younger than now.
local value, head = ARGV[11], nil
local asked, ttl, grace = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local life = math.floor((asked + ttl + grace - t) / 1000)
local handover = life < 1
if handover or asked > t then
  asked = math.min(asked, t)
  local gone = asked + ttl + grace
  life = math.floor((gone - t) / 1000)
  handover = life < 1
  if handover then
    life = math.max(1, math.floor(tonumber(ARGV[7]) / 1000))
    gone = t + life * 1000
  end
  -- include: pack
  -- include: head
  head = new_head(handover and 1 or 0, token, asked, asked + ttl, gone)
end
if KEYS[3] then
  -- include: rename
  if head then
    redis.call('SETRANGE', KEYS[1], 0, head)
  end
else
  if head then
    value = head .. string.sub(value, #head + 1)
  end
  redis.call('SET', KEYS[1], value, 'PX', life)
end

if v[5] == ARGV[2] then
  redis.call('HDEL', KEYS[2], 'holder', 'until', 'waiting')
end
if v[7] then
  redis.call('HDEL', KEYS[2], 'failed', 'reason', 'failed_before', 'reason_before', 'cooling_until', 'cooling_for')
end
redis.call('HSET', KEYS[2], 'fence', ARGV[3])
if ends <= t then -- or the record lives for its keep past the lease
  local span, lives = kept, redis.call('PTTL', KEYS[2])
  -- include: live
end

local waiting = v[6]
if waiting then
  -- A small value is to ride in the message where that is worth it: it saves
  -- each process that waits a GET, and brings the value to all the others, too,
  -- at most seven of them for one that waits. CARRIED is 8, FILLED 3.
  -- include: pack
  local message = '\3' .. pack(token)
  if ARGV[10] == '1' and not handover then
    local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[8])
    local listeners = not heard.err and tonumber(heard[2])
    if listeners and listeners <= 8 * (tonumber(waiting) or 0) then
      message = '\8' .. pack(token) .. value
    end
  end
  redis.pcall('PUBLISH', ARGV[8], message .. ARGV[9])
end
return { 1, t }

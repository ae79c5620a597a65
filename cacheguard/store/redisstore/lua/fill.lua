-- fill: write what was loaded under a grant, unless the fence has passed it.
-- KEYS  entry, record[, staged bytes]
-- ARGV  birth, holder, token, asked, ttl, grace, handover, channel, id, small (1 or 0), body
-- returns {1, now} written, or written before
--         {2, now} fenced: nothing changed
--         {3, now} the staged bytes are not there: nothing changed

-- worth_carrying tells whether the value is to ride in the message. That saves
-- each process that waits a GET, and brings the value to all the others, too:
-- at most seven of them for one that waits.
local function worth_carrying(waiting, channel)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
  local listeners = not heard.err and tonumber(heard[2])
  return listeners and listeners <= 8 * (tonumber(waiting) or 0)
end

local token, asked = tonumber(ARGV[3]), tonumber(ARGV[4])
local t = now()
local r, err = record(KEYS[2])
if err then
  return err
end
if not r or r.birth ~= ARGV[1] then
  -- The record was lost (eviction, flush), and the mark of being waited for
  -- with it: whoever waits for this lease waits for nothing.
  unstage()
  publish(ARGV[8], RELEASED, 0, ARGV[9])
  return { 2, t }
end
if r.fence > token then
  unstage()
  return { 2, t }
end
if r.fence == token then -- this very fill; its reply was lost
  unstage()
  return { 1, t }
end
if #KEYS == 3 and redis.call('EXISTS', KEYS[3]) == 0 then
  return { 3, t }
end

-- A claim that lies ahead of the clock was before it stepped back: the value
-- is not younger than now.
asked = math.min(asked, t)
local fresh = asked + tonumber(ARGV[5])
local gone = fresh + tonumber(ARGV[6])
local life = math.floor((gone - t) / 1000)
local handover = life < 1
if handover then
  life = math.max(1, math.floor(tonumber(ARGV[7]) / 1000))
  gone = t + life * 1000
end
local head, body = new_head(handover, token, asked, fresh, gone), ARGV[11]
write(head, body, life)

local waiting = r.waiting
if r.holder == ARGV[2] then
  end_lease(KEYS[2], r)
end
if r.failed then
  redis.call('HDEL', KEYS[2], 'failed', 'reason', 'failed_before', 'reason_before', 'cooling_until', 'cooling_for')
  r.cooling_until, r.cooling_for = 0, 0
end
redis.call('HSET', KEYS[2], 'fence', str(token), 'last', str(math.max(r.last, token)))
touch(KEYS[2], r, t)
if not waiting then
  return { 1, t }
end
if ARGV[10] == '1' and not handover and worth_carrying(waiting, ARGV[8]) then
  publish(ARGV[8], CARRIED, token, head .. body .. ARGV[9])
else
  publish(ARGV[8], FILLED, token, ARGV[9])
end
return { 1, t }

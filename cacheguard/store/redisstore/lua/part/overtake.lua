-- A write has taken token: it is the fence of the record, if there is one, it
-- ends any lease, and everybody is told. A hint that may not be sent (ACL) must
-- not undo what was written.
if whole then
  if v[5] or v[6] then
    redis.call('HDEL', KEYS[2], 'holder', 'until', 'waiting')
  end
  redis.call('HSET', KEYS[2], 'fence', token)
  if math.max(ends, cooling) <= t then
    local span = kept
    -- include: live
  end
end
redis.pcall('PUBLISH', channel, string.char(event) .. pack(token) .. id)

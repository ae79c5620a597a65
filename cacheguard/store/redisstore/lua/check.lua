-- check: may this user run, in a script, what the other scripts run? It works
-- on a key of its own and leaves nothing.
-- KEYS  entry, record, side key
-- ARGV  channel
-- returns {command, error, command, error, ...} of those that failed
local failed = {}
local function try(command, ...)
  local v = redis.pcall(command, ...)
  if type(v) == 'table' and v.err then
    failed[#failed + 1] = command
    failed[#failed + 1] = v.err
  end
end
try('TIME')
try('SET', KEYS[3], 'check', 'PX', '1000')
try('SETRANGE', KEYS[3], 0, 'C')
try('GETRANGE', KEYS[3], 0, 1)
try('EXISTS', KEYS[3])
if #failed == 0 then -- RENAME of what is not there is another error
  try('RENAME', KEYS[3], KEYS[1])
end
try('HSET', KEYS[2], 'check', '1')
try('HMGET', KEYS[2], 'check')
try('PEXPIRE', KEYS[2], '1000')
try('PTTL', KEYS[2])
try('HDEL', KEYS[2], 'check')
try('UNLINK', KEYS[1], KEYS[2], KEYS[3])
try('PUBLISH', ARGV[1], '')
try('PUBSUB', 'NUMSUB', ARGV[1])
return failed

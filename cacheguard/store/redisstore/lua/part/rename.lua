-- The staged bytes become the entry. Nothing has changed where they are gone.
-- RENAME keeps their expiry, so the entry's own is set after it.
local renamed = redis.pcall('RENAME', KEYS[3], KEYS[1])
if renamed.err then
  if redis.call('EXISTS', KEYS[3]) == 0 then
    return { 3, t }
  end
  return renamed
end
redis.call('PEXPIRE', KEYS[1], life)

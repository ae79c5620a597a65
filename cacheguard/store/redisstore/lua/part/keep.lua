-- The record lived for kept past its last use, its lease and its cooldown: now
-- for keep, which is longer.
redis.call('HSET', KEYS[2], 'keep', keep)
local cools = tonumber(redis.call('HMGET', KEYS[2], 'cooling_until')[1]) or 0
local span = math.max(t, ends, cools) - t + keep
-- include: live

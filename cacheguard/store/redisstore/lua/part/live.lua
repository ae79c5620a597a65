-- The record, which lives for lives milliseconds, is to live for span at least;
-- its life is never shortened. This always writes, and cannot grow memory.
lives = math.max(math.ceil(span / 1000), lives)
redis.call('PEXPIRE', KEYS[2], lives)

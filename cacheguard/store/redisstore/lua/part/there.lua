-- there is the token of whatever is under KEYS[1] (0 when it is no entry or its
-- token cannot be told), head its first bytes, up to and with its kind. The rule
-- is that of tokenOf in entry.go: claimers compare what one of them read with
-- what the other sees, so both must count the same bytes as no entry.
local there, head = 0, redis.pcall('GETRANGE', KEYS[1], 0, 36)
if type(head) == 'string' and #head >= 12 and string.sub(head, 1, 2) == '\199g' then
  local a, b, c, d, e, f, g, h = string.byte(head, 5, 12)
  there = ((((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  if there >= 4503599627370496 then -- 2^52: tokenLimit
    there = 0
  end
end

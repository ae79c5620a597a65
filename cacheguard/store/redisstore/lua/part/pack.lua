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

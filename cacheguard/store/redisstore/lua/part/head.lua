-- new_head is the part of an entry that tells token and times: see entry.go.
local function new_head(flags, token, asked, fresh, gone)
  return '\199g' .. string.char(1, flags) .. pack(token) .. pack(asked) .. pack(fresh) .. pack(gone)
end

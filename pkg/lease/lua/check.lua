-- Reads what the fence needs, in one step and without the common part: this runs for every request, and judging costs less
-- outside (fence.go).
-- Deleting a field that never exists changes nothing and is replicated nowhere, but it fails where writes fail: on a
-- replica and, from Redis 7 on, on a primary that lost its replicas and has min-replicas-to-write. What those know may be
-- out of date.
-- KEYS owner pool
local pcall = redis.pcall
local t = pcall('TIME')
local w = pcall('HDEL', KEYS[2], '-')
local v = pcall('GET', KEYS[1])
if type(w) == 'table' or type(v) ~= 'string' then -- no lease; but say so only when it is certain
  for _, r in pairs({w, v}) do
    if type(r) == 'table' and not string.find(r.err, 'WRONGTYPE', 1, true) then return r end
  end
  return t
end
local conn = string.match(v, '^%S+') or ''
local f = pcall('HMGET', KEYS[2], 'c:' .. conn, 'r:' .. conn)
f[3], f[4], f[5] = v, t[1], t[2]
return f

-- Reads who holds connections and how long they rest, for a request without a lease; see check.lua.
-- KEYS pool   ARGV field...   (c:<conn> and r:<conn> in turns)
local t = redis.call('TIME')
local w = redis.pcall('HDEL', KEYS[1], '-')
if type(w) == 'table' then
  if string.find(w.err, 'WRONGTYPE', 1, true) then return t end
  return w
end
local f = redis.call('HMGET', KEYS[1], unpack(ARGV))
f[#f + 1] = t[1]
f[#f + 1] = t[2]
return f

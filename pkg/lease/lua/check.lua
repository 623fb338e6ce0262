-- The fence: is this generation of this owner's lease live, and does its connection rest? Changes nothing.
-- KEYS owner pool   ARGV owner generation principal
local now = now_ms()
writable(KEYS[2])
local l, rests = live_lease(KEYS[1], KEYS[2], ARGV[1], now)
if not l then return {'NONE', int(now)} end
if l.gen ~= ARGV[2] or l.principal ~= ARGV[3] then return {'STALE', int(now)} end
if rests > now then
  local r = reply('RESTING', now, l)
  r[8] = int(rests)
  return r
end
return reply('VALID', now, l)

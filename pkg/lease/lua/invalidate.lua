-- KEYS owner ended pool events   ARGV owner generation reason history
local keys = {owner = KEYS[1], ended = KEYS[2], pool = KEYS[3], events = KEYS[4]}
local now = now_ms()
local l = live_lease(keys.owner, keys.pool, ARGV[1], now)
if not l or l.gen ~= ARGV[2] then return {'STALE', int(now)} end
end_lease(keys, ARGV[1], l, 'INVALIDATED', 'invalidated', ARGV[3], ARGV[4])
return reply('INVALIDATED', now, l)

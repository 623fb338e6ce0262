-- Ends the lease on a connection, whoever holds it.
-- KEYS pool events   ARGV connection generation reason history   (an empty generation is any)
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local lease = redis.call('HGET', POOL, 'c:' .. ARGV[1])
local l = lease and live(lease, now) and parse(ARGV[1], lease)
if not l then return {'NONE', now} end
if ARGV[2] ~= '' and l.gen ~= ARGV[2] then return {'STALE', now} end
end_lease(l, now, 'INVALIDATED', 'invalidated', ARGV[3], ARGV[4])
return answer('INVALIDATED', now, l)

-- KEYS owner pool events   ARGV owner generation principal ttl maxHold grace history
local now = now_ms()
local l = live_lease(KEYS[1], KEYS[2], ARGV[1], now)
if not l or l.gen ~= ARGV[2] or l.principal ~= ARGV[3] then return {'STALE', int(now)} end
l.expires = math.max(l.expires, math.min(now + tonumber(ARGV[4]), l.acquired + tonumber(ARGV[5])))
l.renewed = now
redis.call('PEXPIRE', KEYS[2], int(POOL_TTL)) -- never refused for want of memory, so neither are the writes after it
store_lease(KEYS[1], KEYS[2], ARGV[1], l, now, tonumber(ARGV[6]))
event(KEYS[3], ARGV[7], 'renewed', ARGV[1], l.gen, l.conn)
return reply('RENEWED', now, l)

-- A connection rests; a longer rest already set stays.
-- KEYS pool   ARGV connection duration
local now = now_ms()
local f = pool_fields(KEYS[1], 'r:' .. ARGV[1])
local till = math.max(tonumber(f[1] or '') or 0, now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'r:' .. ARGV[1], int(till))
redis.call('PEXPIRE', KEYS[1], int(POOL_TTL))
return {'RESTING', int(now), ARGV[1], int(till)}

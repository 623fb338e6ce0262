-- Puts a connection into cooldown; one already set that is longer stays. A duration of 0 ends it.
-- KEYS pool events   ARGV connection duration
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local field, duration = 'd:' .. ARGV[1], tonumber(ARGV[2])
local till = cooldown_end(redis.call('HGET', POOL, field), now)
if duration == 0 then
  redis.call('HDEL', POOL, field)
  return {till > 0 and 'ENDED' or 'NONE', now, ARGV[1], till}
end
till = math.max(till, now + duration)
redis.call('HSET', POOL, field, int(till) .. ' ' .. int(now))
keep_pool(now)
return {'COOLDOWN', now, ARGV[1], till}

-- The fence, and the status of a lease. With touch = 1 it makes a write that replicas can confirm.
-- KEYS pool   ARGV owner generation principal touch
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local conn, lease, cooldown = live_lease(ARGV[1], now)
if not conn then return {'NONE', now} end
if not is(lease, ARGV[2], ARGV[3]) then return {'STALE', now} end
if ARGV[4] == '1' then redis.call('HSET', POOL, 'o:' .. ARGV[1], conn) end
if cooldown then
  local till = cooldown_end(cooldown, now)
  if till > 0 then return {'COOLDOWN', now, conn, lease, till} end
end
return {'VALID', now, conn, lease}

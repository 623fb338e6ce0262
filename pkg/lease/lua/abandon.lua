-- Undoes an acquire whose answer the caller did not wait for, whether it has arrived, or arrives within a minute.
-- KEYS pool events attempt   ARGV owner attempt history
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local conn, lease = live_lease(ARGV[1], now)
local l = conn and parse(conn, lease)
local status = 'NONE'
if l and l.attempt == ARGV[2] then
  end_lease(l, now, 'RELEASED', 'released', 'CLIENT_CANCELLED', ARGV[3])
  status = 'RELEASED'
end
redis.call('SET', KEYS[3], '1', 'PX', '60000')
return {status, now}

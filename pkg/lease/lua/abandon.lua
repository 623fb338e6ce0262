-- Undoes an acquire whose answer the caller did not wait for, whether it has arrived, or arrives within a minute.
-- KEYS owner ended pool events attempt   ARGV owner attempt history
local keys = {owner = KEYS[1], ended = KEYS[2], pool = KEYS[3], events = KEYS[4]}
local now = now_ms()
local l = live_lease(keys.owner, keys.pool, ARGV[1], now)
local status = 'NONE'
if l and l.attempt == ARGV[2] then
  end_lease(keys, ARGV[1], l, 'RELEASED', 'released', 'CLIENT_CANCELLED', ARGV[3])
  status = 'RELEASED'
end
redis.call('SET', KEYS[5], '1', 'PX', '60000')
return {status, int(now)}

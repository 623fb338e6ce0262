-- KEYS pool events   ARGV owner generation principal reason history
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local conn, lease = live_lease(ARGV[1], now)
if conn then
  if not is(lease, ARGV[2], ARGV[3]) then return {'STALE', now} end
  local l = parse(conn, lease)
  end_lease(l, now, 'RELEASED', 'released', ARGV[4], ARGV[5])
  return answer('RELEASED', now, l)
end
-- The repeat of a release whose answer was lost gets that answer.
conn = redis.call('HGET', POOL, 'o:' .. ARGV[1]) or ''
lease = string.match(redis.call('HGET', POOL, 'e:' .. conn) or '', '^%d+ RELEASED (.*)$')
if lease and owner_of(lease) == ARGV[1] and is(lease, ARGV[2], ARGV[3]) then
  keep_pool(now) -- a write that replicas can confirm
  return {'RELEASED', now, conn, lease}
end
return {'STALE', now}

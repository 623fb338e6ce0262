-- KEYS pool events   ARGV owner generation principal ttl maxHold history
local broken = refuses_writes() -- a write: after it a full store does not refuse the others
if broken then return broken end
local now = now_ms()
local conn, lease = live_lease(ARGV[1], now)
if not conn or not is(lease, ARGV[2], ARGV[3]) then return {'STALE', now} end
local l = parse(conn, lease)
extend(l, now, tonumber(ARGV[4]), tonumber(ARGV[5]))
save(l, now)
event(ARGV[6], 'renewed', l.owner, l.gen, l.conn)
return answer('RENEWED', now, l)

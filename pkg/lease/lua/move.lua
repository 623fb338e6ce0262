-- Moves a lease away from a connection that is in cooldown or not eligible any more to the first free one; when there is
-- none the lease ends. Its generation and expiry stay; the fencing token is drawn anew.
-- KEYS pool events   ARGV owner generation principal reason maxHold floor history connection...
local owner, reason, max_hold, floor, history = ARGV[1], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local first = 8
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local conn, lease, cooldown = live_lease(owner, now)
if not conn then return {'NONE', now} end
if not is(lease, ARGV[2], ARGV[3]) then return {'STALE', now} end
for i = first, #ARGV do
  -- Somebody else has moved it already, or the cooldown is over.
  if ARGV[i] == conn and cooldown_end(cooldown, now) == 0 then return {'VALID', now, conn, lease} end
end

local l = parse(conn, lease)
local chosen, old, held, expires, cooled = choose(first, owner, now, conn)
if not chosen then
  end_lease(l, now, 'INVALIDATED', 'invalidated', reason, history)
  return {'UNAVAILABLE', now, held, math.min(expires or cooled or now, cooled or expires or now)}
end
redis.call('HDEL', POOL, 'c:' .. conn)
make_room(chosen, old, owner, max_hold, history)
l.conn, l.token = chosen, next_number(floor, now)
save(l, now)
event(history, 'moved', owner, l.gen, chosen, 'from', conn, 'reason', reason)
return answer('MOVED', now, l)

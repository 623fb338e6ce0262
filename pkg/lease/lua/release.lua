-- KEYS owner ended pool events   ARGV owner generation principal reason history
local keys = {owner = KEYS[1], ended = KEYS[2], pool = KEYS[3], events = KEYS[4]}
local now = now_ms()
local l = live_lease(keys.owner, keys.pool, ARGV[1], now)
if l then
  if l.gen ~= ARGV[2] or l.principal ~= ARGV[3] then return {'STALE', int(now)} end
  end_lease(keys, ARGV[1], l, 'RELEASED', 'released', ARGV[4], ARGV[5])
  return reply('RELEASED', now, l)
end
-- The repeat of a release whose answer was lost gets that answer.
local gen, principal, conn, acquired, renewed, expires, state =
  string.match(get(keys.ended) or '', '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%S+)$')
if gen == ARGV[2] and principal == ARGV[3] and state == 'RELEASED' then
  return {'RELEASED', int(now), conn, gen, acquired, renewed, expires}
end
return {'STALE', int(now)}

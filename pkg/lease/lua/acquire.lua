-- KEYS pool events attempt
-- ARGV owner principal attempt ttl maxHold floor history model connection...   (connections in order of preference)
local owner, principal, attempt = ARGV[1], ARGV[2], ARGV[3]
local ttl, max_hold, floor, history, model = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local first = 9
local now = now_ms()

-- A new lease begins with a write that a full store refuses, before anything has changed; so the write that only tells
-- whether this server may answer at all comes here only where it has to.
if type(redis.pcall('HGET', POOL, 'gen')) == 'table' then
  local broken = refuses_writes()
  if broken then return broken end
end
-- The caller gave this attempt up before it arrived.
if redis.call('EXISTS', KEYS[3]) == 1 then return {'ABANDONED', now} end

local conn, lease = live_lease(owner, now)
local chosen, old, held, expires, cooled
if not conn then chosen, old, held, expires, cooled = choose(first, owner, now) end

if not chosen then
  local broken = refuses_writes()
  if broken then return broken end
  if not conn then return nothing_free(now, held, expires, cooled) end
  local l = parse(conn, lease)
  if l.attempt == attempt then return answer('ACQUIRED', now, l) end -- sent again because its answer was lost
  local eligible = false
  for i = first, #ARGV do eligible = eligible or ARGV[i] == conn end
  if l.principal ~= principal or not eligible then return {'STALE', now} end
  extend(l, now, ttl, max_hold)
  l.attempt = '-' -- no longer what one attempt made: an attempt given up must not end it any more
  save(l, now)
  event(history, 'renewed', owner, l.gen, conn)
  return answer('REUSED', now, l)
end

local n = next_number(floor, now)
if type(n) == 'table' then return n end
make_room(chosen, old, owner, max_hold, history)
local l = {conn = chosen, owner = owner, gen = n, principal = principal, token = n, acquired = now, renewed = now,
           expires = now + math.min(ttl, max_hold), attempt = attempt, model = model}
save(l, now)
event(history, 'acquired', owner, l.gen, l.conn)
return answer('ACQUIRED', now, l)

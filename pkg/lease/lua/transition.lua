-- Moves a lease, its generation and expiry unchanged.
-- mode "to": to the one connection named; when it is taken nothing changes.
-- mode "away": from a connection that rests or is not eligible any more to the first free one; when there is none the
-- lease is invalidated.
-- KEYS owner ended pool events   ARGV owner generation principal mode reason grace history connection...
local keys = {owner = KEYS[1], ended = KEYS[2], pool = KEYS[3], events = KEYS[4]}
local owner, mode, reason, grace, history = ARGV[1], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7]
local first = 8
local now = now_ms()
local l, rests = live_lease(keys.owner, keys.pool, owner, now)
if not l then return {'NONE', int(now)} end
if l.gen ~= ARGV[2] or l.principal ~= ARGV[3] then return {'STALE', int(now)} end

local names = {}
for i = first, #ARGV do
  -- Somebody else has moved it already, or its rest is over.
  if ARGV[i] == l.conn and (mode == 'to' or rests <= now) then return reply('REUSED', now, l) end
  names[#names + 1] = 'c:' .. ARGV[i]
  names[#names + 1] = 'r:' .. ARGV[i]
end
local f = {}
if #names > 0 then f = pool_fields(keys.pool, unpack(names)) end

local chosen, chosen_holder, soonest = nil, nil, nil
for i = first, #ARGV do
  local at = 2 * (i - first) + 1
  local h, until_ = parse_holder(f[at]), tonumber(f[at + 1] or '') or 0
  local free_at = 0
  if h and h.expires > now and h.owner ~= owner then free_at = h.expires end
  if mode == 'away' and until_ > now then free_at = math.max(free_at, until_) end
  if free_at == 0 then
    if ARGV[i] ~= l.conn and not chosen then chosen, chosen_holder = ARGV[i], h end
  elseif not soonest or free_at < soonest then
    soonest = free_at
  end
end

if not chosen then
  if mode == 'away' then
    end_lease(keys, owner, l, 'INVALIDATED', 'invalidated', reason, history)
  end
  return {'UNAVAILABLE', int(now), int(#ARGV - first + 1), int(soonest or now)}
end
local from = l.conn
redis.call('HDEL', keys.pool, 'c:' .. from)
l.conn = chosen
store_lease(keys.owner, keys.pool, owner, l, now, grace)
if chosen_holder and chosen_holder.owner ~= owner then
  event(keys.events, history, 'expired', chosen_holder.owner, chosen_holder.gen, chosen, 'reason', 'TTL_EXPIRED')
end
event(keys.events, history, 'moved', owner, l.gen, l.conn, 'from', from, 'reason', reason)
return reply('MOVED', now, l)

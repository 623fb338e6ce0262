-- KEYS owner ended pool events attempt
-- ARGV owner principal attempt ttl maxHold grace history connection...   (connections in order of preference)
local owner, principal, attempt = ARGV[1], ARGV[2], ARGV[3]
local ttl, max_hold, grace, history = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local first = 8
local now = now_ms()

-- The caller gave this attempt up before it arrived.
if redis.call('EXISTS', KEYS[5]) == 1 then return {'ABANDONED', int(now)} end

local l = live_lease(KEYS[1], KEYS[3], owner, now)
if l then
  local known = false
  for i = first, #ARGV do known = known or ARGV[i] == l.conn end
  if l.principal ~= principal or not known then return {'STALE', int(now)} end
  l.expires = math.max(l.expires, math.min(now + ttl, l.acquired + max_hold))
  l.renewed = now
  -- The lease is no longer what one attempt made: an attempt given up must not end it any more.
  l.attempt = '-'
  redis.call('PEXPIRE', KEYS[3], int(POOL_TTL)) -- never refused for want of memory, see store_lease
  store_lease(KEYS[1], KEYS[3], owner, l, now, grace)
  event(KEYS[4], history, 'renewed', owner, l.gen, l.conn)
  return reply('REUSED', now, l)
end

local names = {'gen'}
for i = first, #ARGV do
  names[#names + 1] = 'c:' .. ARGV[i]
  names[#names + 1] = 'r:' .. ARGV[i]
end
local f = pool_fields(KEYS[3], unpack(names))

local chosen, chosen_holder, eligible, soonest, awake = nil, nil, 0, nil, nil
local leftovers = {} -- fields that name this owner although it holds nothing
for i = first, #ARGV do
  local at = 2 * (i - first) + 2
  local h, rests = parse_holder(f[at]), tonumber(f[at + 1] or '') or 0
  if h and h.owner == owner then
    leftovers[#leftovers + 1] = 'c:' .. ARGV[i]
  end
  if rests > now then
    if not awake or rests < awake then awake = rests end
  else
    eligible = eligible + 1
    if not h or h.expires <= now or h.owner == owner then
      if not chosen then chosen, chosen_holder = ARGV[i], h end
    elseif not soonest or h.expires < soonest then
      soonest = h.expires
    end
  end
end
if not chosen then
  if eligible > 0 then return {'CAPACITY', int(now), int(eligible), int(soonest)} end
  return {'ELIGIBILITY', int(now), '0', int(awake or now)}
end

local previous = tonumber(f[1] or '') or 0
local ended = string.match(get(KEYS[2]) or '', '^(%d+) ')
local stale = parse_lease(get(KEYS[1]))
previous = math.max(previous, tonumber(ended or '0'), tonumber(stale and stale.gen or '0'))

l = {gen = int(math.max(previous + 1, now)), principal = principal, conn = chosen, acquired = now,
     renewed = now, expires = now + math.min(ttl, max_hold), attempt = attempt}
redis.call('HSET', KEYS[3], 'gen', l.gen)
if #leftovers > 0 then redis.call('HDEL', KEYS[3], unpack(leftovers)) end
store_lease(KEYS[1], KEYS[3], owner, l, now, grace)
redis.call('DEL', KEYS[2])
if chosen_holder then
  event(KEYS[4], history, 'expired', chosen_holder.owner, chosen_holder.gen, chosen,
        'reason', expiry_reason(chosen_holder, max_hold))
end
event(KEYS[4], history, 'acquired', owner, l.gen, l.conn)
return reply('ACQUIRED', now, l)

-- Put in front of every script of this folder but check.lua and free.lua.
--
-- Records, all text, fields separated by one blank:
--   owner key         connection generation principal acquired renewed expires attempt
--   pool, c:<conn>    owner generation principal acquired renewed expires
--   pool, r:<conn>    until
--   pool, gen         the last generation given in this pool
--   ended key         generation principal connection acquired renewed expires state
-- A lease lives iff its owner key and its connection's field agree and it has not expired: losing either half
-- (eviction, a partial restore) loses the lease, and can never make two of it.

local POOL_TTL = 172800000    -- 48 h: longer than the longest rest and the longest lease
local ENDED_TTL = 86400000    -- 24 h
local EVENTS_TTL = 604800000  -- 7 d

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

-- Lua prints large numbers as 1e+15; keys, fields and values need digits.
local function int(n)
  return string.format('%.0f', n)
end

-- A key of another type is someone's mistake: it counts as absent, so that it cannot refuse anybody for ever.
-- Every other error (no permission, say) is the answer of the whole script.
local function wrong_type(v)
  if type(v) ~= 'table' or not v.err then return false end
  if string.find(v.err, 'WRONGTYPE', 1, true) then return true end
  error(v.err)
end

local function get(key)
  local v = redis.pcall('GET', key)
  if wrong_type(v) or not v then return nil end
  return v
end

local function pool_fields(key, ...)
  local v = redis.pcall('HMGET', key, ...)
  if wrong_type(v) then
    redis.call('DEL', key)
    return {}
  end
  return v
end

local function parse_holder(v)
  if not v then return nil end
  local owner, gen, principal, acquired, renewed, expires =
    string.match(v, '^(%x+) (%d+) (%S+) (%d+) (%d+) (%d+)$')
  if not owner then return nil end
  return {owner = owner, gen = gen, principal = principal, acquired = tonumber(acquired),
          renewed = tonumber(renewed), expires = tonumber(expires)}
end

-- What the owner key says, live or not.
local function parse_lease(v)
  if not v then return nil end
  local conn, gen, principal, acquired, renewed, expires, attempt =
    string.match(v, '^(%S+) (%d+) (%S+) (%d+) (%d+) (%d+) (%S+)$')
  if not gen then return nil end
  return {gen = gen, principal = principal, conn = conn, acquired = tonumber(acquired),
          renewed = tonumber(renewed), expires = tonumber(expires), attempt = attempt}
end

-- The owner's live lease and the until of its connection's rest (0: none), or nil.
local function live_lease(owner_key, pool_key, owner, now)
  local l = parse_lease(get(owner_key))
  if not l or l.expires <= now then return nil end
  local f = pool_fields(pool_key, 'c:' .. l.conn, 'r:' .. l.conn)
  local h = parse_holder(f[1])
  if not h or h.owner ~= owner or h.gen ~= l.gen then return nil end
  return l, tonumber(f[2] or '') or 0
end

local function reply(status, now, l)
  return {status, int(now), l.conn, l.gen, int(l.acquired), int(l.renewed), int(l.expires)}
end

-- Writes both halves. The first write must be able to fail for want of memory before anything has changed
-- (acquire), or must be one that never does (renewal, move): the caller decides by what it writes before.
local function store_lease(owner_key, pool_key, owner, l, now, grace)
  redis.call('HSET', pool_key, 'c:' .. l.conn, table.concat(
    {owner, l.gen, l.principal, int(l.acquired), int(l.renewed), int(l.expires)}, ' '))
  redis.call('PEXPIRE', pool_key, int(POOL_TTL))
  redis.call('SET', owner_key, table.concat(
    {l.conn, l.gen, l.principal, int(l.acquired), int(l.renewed), int(l.expires), l.attempt}, ' '),
    'PX', int(l.expires - now + grace))
end

local function event(key, history, what, owner, gen, conn, ...)
  if history == '0' then return end
  local add = {'XADD', key, 'MAXLEN', '~', history, '*',
               'event', what, 'owner', owner, 'generation', gen, 'connection', conn, ...}
  if wrong_type(redis.pcall(unpack(add))) then
    redis.call('DEL', key)
    redis.call(unpack(add))
  end
  redis.call('PEXPIRE', key, int(EVENTS_TTL))
end

-- A lease that reached acquired + max_hold was not left to expire, it was cut off.
local function expiry_reason(h, max_hold)
  if h.expires >= h.acquired + max_hold then return 'MAX_HOLD' end
  return 'TTL_EXPIRED'
end

local function end_lease(keys, owner, l, state, what, reason, history)
  redis.call('DEL', keys.owner)
  redis.call('HDEL', keys.pool, 'c:' .. l.conn)
  redis.call('SET', keys.ended, table.concat(
    {l.gen, l.principal, l.conn, int(l.acquired), int(l.renewed), int(l.expires), state}, ' '),
    'PX', int(ENDED_TTL))
  event(keys.events, history, what, owner, l.gen, l.conn, 'reason', reason)
end

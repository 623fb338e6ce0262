-- The rule of which lease is live. It stands in front of every script, and nowhere else.
--
-- A pool is one hash. Its fields, text with blanks between the parts, moments in ms of the store's clock:
--   gen          the last number given: generations and fencing tokens come from this one counter
--   o:<owner>    the connection of the owner's lease, the live one or the last that ended
--   c:<conn>     a lease: expires renewed owner generation principal token acquired attempt model
--   d:<conn>     until set: the connection is in cooldown
--   e:<conn>     ended state lease: the last lease that ended there
-- The first three parts of a lease have a fixed width (16, 16 and 64), so that the fence need not match patterns.
-- A lease is live iff its owner's field names the connection whose field names the owner, and it has not expired.

local POOL = KEYS[1]
local SKEW = 60000 -- a record that is further ahead of the clock than this was written by a clock that was wrong

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Deleting a field that never exists changes nothing and is replicated nowhere, but it fails where writes fail: on a
-- replica and, from Redis 7 on, on a primary that lost its replicas and has min-replicas-to-write. What those know may be
-- out of date. A key of another type is somebody's mistake and is removed. Returns the error, or nil.
local function refuses_writes()
  local v = redis.pcall('HDEL', POOL, '-')
  if type(v) ~= 'table' or not v.err then return nil end
  if not string.find(v.err, 'WRONGTYPE', 1, true) then return v end
  redis.call('DEL', POOL)
  return nil
end

local function expiry(lease)
  return tonumber(string.sub(lease, 1, 16)) or 0
end

local function owner_of(lease)
  return string.sub(lease, 35, 98)
end

local function live(lease, now)
  return expiry(lease) > now and (tonumber(string.sub(lease, 18, 33)) or 0) <= now + SKEW
end

-- The connection and the record of the owner's live lease, and its connection's cooldown field; or nil.
local function live_lease(owner, now)
  local conn = redis.call('HGET', POOL, 'o:' .. owner)
  if not conn then return nil end
  local f = redis.call('HMGET', POOL, 'c:' .. conn, 'd:' .. conn)
  if not f[1] or owner_of(f[1]) ~= owner or not live(f[1], now) then return nil end
  return conn, f[1], f[2]
end

-- Whether a record has this generation and principal.
local function is(lease, generation, principal)
  local wanted = generation .. ' ' .. principal .. ' '
  return string.sub(lease, 100, 99 + #wanted) == wanted
end

-- In front of every script that changes something.

local EVENTS = KEYS[2]
local POOL_TTL = 172800000    -- 48 h: longer than the longest cooldown and the longest lease
local EVENTS_TTL = 604800000  -- 7 d
local MAX_NUMBER = 9007199254740991

-- Lua prints large numbers as 1e+15; fields and arguments of commands need digits.
local function int(n)
  return string.format('%.0f', n)
end

local function event(history, what, owner, gen, conn, ...)
  if history == '0' then return end
  local add = {'XADD', EVENTS, 'MAXLEN', '~', history, '*',
               'event', what, 'owner', owner, 'generation', gen, 'connection', conn, ...}
  local v = redis.pcall(unpack(add))
  if type(v) == 'table' and v.err then
    if not string.find(v.err, 'WRONGTYPE', 1, true) then error(v.err) end
    redis.call('DEL', EVENTS)
    redis.call(unpack(add))
  end
  redis.call('PEXPIRE', EVENTS, int(EVENTS_TTL))
end

local function last_number()
  local last = tonumber(redis.call('HGET', POOL, 'gen') or '') or 0
  if last >= MAX_NUMBER then return 0 end
  return last
end

-- The pool lives on for its time and, where its numbers are ahead of the clock, until the clock has caught up with them.
local function keep_pool(now)
  redis.call('PEXPIRE', POOL, int(POOL_TTL + math.max(last_number() - now, 0)))
end

-- A server that lost numbers, by a restart or a failover, learns what the caller has seen.
local function raise(floor, now)
  if tonumber(floor) <= last_number() then return end
  redis.call('HSET', POOL, 'gen', floor)
  keep_pool(now)
end

-- The next generation or token: above every one the pool or the caller (floor) knows of, and not below the clock. An error
-- of the store is returned as it is.
local function next_number(floor, now)
  local n = int(math.max(last_number() + 1, tonumber(floor) + 1, now))
  local v = redis.pcall('HSET', POOL, 'gen', n)
  if type(v) == 'table' and v.err then return v end
  return n
end

-- A lease as a table.
local function parse(conn, lease)
  local gen, principal, token, acquired, attempt, model = string.match(lease, '^(%d+) (%S+) (%d+) (%d+) (%S+) (.*)$', 100)
  if not gen then return nil end
  return {conn = conn, owner = owner_of(lease), gen = gen, principal = principal, token = token, acquired = tonumber(acquired),
          renewed = tonumber(string.sub(lease, 18, 33)), expires = expiry(lease), attempt = attempt, model = model}
end

local function record(l)
  return string.format('%016.0f %016.0f %s %s %s %s %.0f %s %s', l.expires, l.renewed, l.owner, l.gen, l.principal, l.token,
                       l.acquired, l.attempt, l.model)
end

local function save(l, now)
  redis.call('HSET', POOL, 'o:' .. l.owner, l.conn, 'c:' .. l.conn, record(l))
  keep_pool(now)
end

local function extend(l, now, ttl, max_hold)
  l.expires = math.max(l.expires, math.min(now + ttl, l.acquired + max_hold))
  l.renewed = now
end

local function answer(status, now, l)
  return {status, now, l.conn, record(l)}
end

-- Forgets where an owner's last lease was, unless it has another one by now.
local function forget_owner(owner, conn)
  if redis.call('HGET', POOL, 'o:' .. owner) == conn then redis.call('HDEL', POOL, 'o:' .. owner) end
end

-- A lease that reached acquired + max_hold was not left to expire, it was cut off.
local function expiry_reason(l, max_hold)
  if l.expires >= l.acquired + max_hold then return 'MAX_HOLD' end
  return 'TTL_EXPIRED'
end

-- Makes room on a connection where an expired lease is left: of somebody else, if at all.
local function make_room(conn, lease, owner, max_hold, history)
  local l = lease and owner_of(lease) ~= owner and parse(conn, lease)
  if not l then return end
  forget_owner(l.owner, conn)
  event(history, 'expired', l.owner, l.gen, conn, 'reason', expiry_reason(l, max_hold))
end

-- Ends a live lease. Of all that ended on a connection only the last one is remembered.
local function end_lease(l, now, state, what, reason, history)
  local before = redis.call('HGET', POOL, 'e:' .. l.conn)
  redis.call('HDEL', POOL, 'c:' .. l.conn)
  if before then
    local owner = owner_of(string.match(before, '^%d+ %S+ (.*)$') or '')
    if owner ~= l.owner then forget_owner(owner, l.conn) end
  end
  redis.call('HSET', POOL, 'e:' .. l.conn, int(now) .. ' ' .. state .. ' ' .. record(l))
  keep_pool(now)
  event(history, what, l.owner, l.gen, l.conn, 'reason', reason)
end

-- Writes down leases that ran out and removes what is over, some fields at a time: answers the cursor of the next call,
-- '0' after the last, and what this one saw. Nothing depends on when it runs.
-- KEYS pool events   ARGV cursor maxHold floor history
local FIELDS = 200         -- of one call, about
local ENDED_TTL = 86400000 -- 24 h
local cursor, max_hold, history = ARGV[1], tonumber(ARGV[2]), ARGV[4]
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
if cursor == '0' then raise(ARGV[3], now) end
local page = redis.call('HSCAN', POOL, cursor, 'COUNT', FIELDS)
local fields, over = page[2], {}
local active, cooling, expired = 0, 0, 0
for i = 1, #fields, 2 do
  local name, v = fields[i], fields[i + 1]
  local kind, id = string.match(name, '^(%l):(.+)$')
  local stays = name == 'gen'
  if kind == 'c' then
    local l = parse(id, v)
    stays = l and live(v, now)
    if stays then
      active = active + 1
    elseif l then
      expired = expired + 1
      event(history, 'expired', l.owner, l.gen, id, 'reason', expiry_reason(l, max_hold))
    end
  elseif kind == 'd' then
    stays = cooldown_end(v, now) > 0
    if stays then cooling = cooling + 1 end
  elseif kind == 'e' then
    stays = now < tonumber(string.match(v, '^(%d+) ') or 0) + ENDED_TTL
  elseif kind == 'o' then
    local f = redis.call('HMGET', POOL, 'c:' .. v, 'e:' .. v)
    local ended = f[2] and string.match(f[2], '^%d+ %S+ (.*)$')
    stays = (f[1] and owner_of(f[1]) == id) or (ended and owner_of(ended) == id)
  end
  if not stays then over[#over + 1] = name end
end
if #over > 0 then redis.call('HDEL', POOL, unpack(over)) end
-- A hash that somebody else made must not stay for ever.
if redis.call('PTTL', POOL) == -1 then keep_pool(now) end
return {'SWEPT', now, page[1], active, cooling, expired}

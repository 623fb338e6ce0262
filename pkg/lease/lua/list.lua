-- The whole pool, for operators: live leases, connections in cooldown, and the latest events. Changes nothing.
-- KEYS pool events   ARGV count of events
local now = now_ms()
local all = redis.pcall('HGETALL', POOL)
if all.err then
  if not string.find(all.err, 'WRONGTYPE', 1, true) then return all end
  all = {}
end
local leases, cooldowns = {}, {}
for i = 1, #all, 2 do
  local kind, conn = string.match(all[i], '^(%l):(.+)$')
  if kind == 'c' then
    if live(all[i + 1], now) then leases[#leases + 1] = {conn, all[i + 1]} end
  elseif kind == 'd' then
    local till = cooldown_end(all[i + 1], now)
    if till > 0 then cooldowns[#cooldowns + 1] = {conn, till} end
  end
end
local events = {}
if ARGV[1] ~= '0' then
  events = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', ARGV[1])
  if events.err then events = {} end
end
return {'POOL', now, leases, cooldowns, events}

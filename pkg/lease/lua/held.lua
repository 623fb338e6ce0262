-- The fencing tokens of live leases, 0 where there is none.
-- KEYS pool   ARGV owner generation ...   (in turns; an empty generation is any)
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local owners, records, found = {}, {}, {'HELD', now}
for i = 1, #ARGV, 2 do owners[#owners + 1] = 'o:' .. ARGV[i] end
local conns = redis.call('HMGET', POOL, unpack(owners))
for i = 1, #owners do records[i] = 'c:' .. (conns[i] or '') end
local values = redis.call('HMGET', POOL, unpack(records))
for i = 1, #owners do
  local lease, gen = values[i], ARGV[2 * i]
  found[i + 2] = '0'
  if lease and owner_of(lease) == ARGV[2 * i - 1] and live(lease, now) then
    local its_gen, token = string.match(lease, '^(%d+) %S+ (%d+) ', 100)
    if gen == '' or gen == its_gen then found[i + 2] = token or '0' end
  end
end
return found

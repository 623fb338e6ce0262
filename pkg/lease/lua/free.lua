-- The first connection that no live lease holds and that does not rest. Changes nothing.
-- KEYS pool   ARGV connection...
local now = now_ms()
writable(KEYS[1])
local names = {}
for i = 1, #ARGV do
  names[#names + 1] = 'c:' .. ARGV[i]
  names[#names + 1] = 'r:' .. ARGV[i]
end
local f = pool_fields(KEYS[1], unpack(names))
local eligible, soonest, awake = 0, nil, nil
for i = 1, #ARGV do
  local h, rests = parse_holder(f[2 * i - 1]), tonumber(f[2 * i] or '') or 0
  if rests > now then
    if not awake or rests < awake then awake = rests end
  else
    eligible = eligible + 1
    if not h or h.expires <= now then return {'FREE', int(now), ARGV[i]} end
    if not soonest or h.expires < soonest then soonest = h.expires end
  end
end
if eligible > 0 then return {'CAPACITY', int(now), int(eligible), int(soonest)} end
return {'ELIGIBILITY', int(now), '0', int(awake or now)}

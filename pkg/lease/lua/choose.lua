-- Chooses among connections, for the scripts that bind somebody to one.

-- Looks at the connections ARGV[first...], in order of preference, for an owner. Returns the first that is free and not in
-- cooldown with the record that is left there; or nil, how many are held by others, when the first of those leases
-- expires and when the first cooldown ends. The connection except is passed over.
local function choose(first, owner, now, except)
  local names = {}
  for i = first, #ARGV do
    names[#names + 1] = 'c:' .. ARGV[i]
    names[#names + 1] = 'd:' .. ARGV[i]
  end
  if #names == 0 then return nil, nil, 0, nil, nil end
  local f = redis.call('HMGET', POOL, unpack(names))
  local held, expires, cooled = 0, nil, nil
  for i = first, #ARGV do
    local at = 2 * (i - first) + 1
    local lease, cooldown = f[at], cooldown_end(f[at + 1], now)
    if cooldown > 0 then
      if not cooled or cooldown < cooled then cooled = cooldown end
    elseif lease and live(lease, now) and owner_of(lease) ~= owner then
      held = held + 1
      if not expires or expiry(lease) < expires then expires = expiry(lease) end
    elseif ARGV[i] ~= except then
      return ARGV[i], lease
    end
  end
  return nil, nil, held, expires, cooled
end

-- Why choose found nothing: how many are held, and when to come back.
local function nothing_free(now, held, expires, cooled)
  if held > 0 then return {'CAPACITY', now, held, expires} end
  return {'ELIGIBILITY', now, 0, cooled or now}
end

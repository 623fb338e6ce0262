-- When a cooldown ends, 0 when there is none.
local function cooldown_end(v, now)
  if not v then return 0 end
  local till, set = string.match(v, '^(%d+) (%d+)$')
  till, set = tonumber(till or 0), tonumber(set or 0)
  if till <= now or set > now + SKEW then return 0 end
  return till
end

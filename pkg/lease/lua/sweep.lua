-- Writes down the leases that ran out, and forgets them and the rests that are over. Nothing depends on when it runs.
-- KEYS pool events   ARGV maxHold history
local now = now_ms()
local all = redis.pcall('HGETALL', KEYS[1])
if wrong_type(all) then
  redis.call('DEL', KEYS[1])
  all = {}
end
local active, resting, expired = 0, 0, 0
for i = 1, #all, 2 do
  local kind, conn = string.match(all[i], '^([cr]):(.+)$')
  local over = false
  if kind == 'c' then
    local h = parse_holder(all[i + 1])
    over = not h or h.expires <= now
    if not over then
      active = active + 1
    elseif h then
      expired = expired + 1
      event(KEYS[2], ARGV[2], 'expired', h.owner, h.gen, conn, 'reason', expiry_reason(h, tonumber(ARGV[1])))
    end
  elseif kind == 'r' then
    over = (tonumber(all[i + 1]) or 0) <= now
    if not over then resting = resting + 1 end
  end
  if over then redis.call('HDEL', KEYS[1], all[i]) end
end
-- A hash that somebody else made must not stay for ever.
if #all > 0 and redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIRE', KEYS[1], int(POOL_TTL)) end
return {'SWEPT', int(now), int(active), int(resting), int(expired)}

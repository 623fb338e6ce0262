-- A member writes its record and claims a part of the limit, and learns what the group has.
-- KEYS group   ARGV member record want floor alone window most limit replicas part
-- Fields of the group, moments in ms of the store's clock:
--   state       version at limit learner    at: when the evidence behind it was read
--   m:<member>  at claim alone record       alone: the most that the member takes when it does not reach the store
local VALID, FORGET = 3, 120 -- windows

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function int(n) return string.format('%.0f', n) end

local self = 'm:' .. ARGV[1]
local want, floor, window, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
local limit, version, age, state = tonumber(ARGV[8]), '0', 0, false
local others, claims, gone, known = {}, 0, 0, 0 -- gone: what members that are gone, or have not come yet, may take

local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local field, value = all[i], all[i + 1]
  if field == 'state' then
    local v, at, l, from = string.match(value, '^(%d+) (%d+) (%d+) ()')
    if v then
      version, age, limit, state = v, now - tonumber(at), tonumber(l), string.sub(value, from)
    end
  elseif field ~= self and string.sub(field, 1, 2) == 'm:' then
    local at, claim, alone, from = string.match(value, '^(%d+) (%d+) (%d+) ()')
    local passed = at and math.max(0, now - tonumber(at))
    if not at or passed > FORGET * window then
      redis.call('HDEL', KEYS[1], field)
    elseif passed > VALID * window then
      known = known + 1
      gone = gone + tonumber(alone)
    else
      known = known + 1
      claims = claims + tonumber(claim)
      others[#others + 1] = {string.sub(field, 3), int(passed), claim, string.sub(value, from)}
    end
  end
end

gone = gone + tonumber(ARGV[10]) * math.max(0, tonumber(ARGV[9]) - 1 - known)
local granted = math.max(floor, math.min(want, limit - claims, most - claims - gone))
redis.call('HSET', KEYS[1], self, int(now) .. ' ' .. int(granted) .. ' ' .. ARGV[5] .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], int(FORGET * window)) -- what was written is of no use after VALID windows, but for who is gone
return {int(now), version, int(age), int(granted), state or '', others}

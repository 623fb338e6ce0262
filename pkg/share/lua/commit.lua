-- A member offers the group's next state; it is taken only if nobody else has offered one for the same version.
-- KEYS group   ARGV version at limit learner window
local FORGET = 120 -- windows

local value = redis.call('HGET', KEYS[1], 'state')
local version = value and string.match(value, '^(%d+) ') or '0'
if version ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
-- At least the time: a version from before the store lost the group is never one of it again.
local nextVersion = math.max(tonumber(version) + 1, now)
redis.call('HSET', KEYS[1], 'state', string.format('%.0f', nextVersion) .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', FORGET * tonumber(ARGV[5])))
return 1

-- The whole pool, for operators. Changes nothing.
-- KEYS pool
local all = redis.pcall('HGETALL', KEYS[1])
if wrong_type(all) then all = {} end
return {'POOL', int(now_ms()), all}

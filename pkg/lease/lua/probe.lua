-- Whether leases can work here.
-- KEYS pool events   ARGV floor
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
raise(ARGV[1], now)
return {'WORKS', now}

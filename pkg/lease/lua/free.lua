-- A connection for a request without a lease.
-- KEYS pool   ARGV connection...   (in order of preference)
local broken = refuses_writes()
if broken then return broken end
local now = now_ms()
local chosen, _, held, expires, cooled = choose(1, '', now)
if not chosen then return nothing_free(now, held, expires, cooled) end
return {'FREE', now, chosen}

-- disown: end the lease of an owner that is known to be dead, and ring at once.
-- The token must begin with `whose` (worker and pid). `fault` = 1: the session itself brought its process down.
-- An owner dies once: `left` says that this one has, so a repeat counts no second fault and rings no second time.
-- FLAGS allow-oom
-- PARTS clock ring
-- KEYS own due
-- ARGV now session whose fault grace_ms template wakes queue broker_db journal_db what
-- Returns {'done', ring} | {'superseded', 0} | {'gone', 0}
local ms = clock(now)
local h = redis.call('HMGET', own, 'token', 'deployment', 'lease', 'left', 'attempt_key', 'turn')
if not h[1] then return {'gone', 0} end
if h[1] == '' or whose == '' or string.sub(h[1], 1, #whose) ~= whose then return {'superseded', 0} end
if h[4] == h[1] then return {'done', 0} end
redis.call('HSET', own, 'lease', whole(math.min(ms, tonumber(h[3]))), 'left', h[1])
if fault == '1' then redis.call('HINCRBY', own, 'faults', 1) end
redis.call('ZADD', due, whole(ms + grace_ms), session)
-- The keeper knows a session and a dead process, and not what for.
local about = what ~= '' and what or h[5] ~= '' and h[5] or h[6]
return {'done', ring(own, h[2], session, about, ms)}

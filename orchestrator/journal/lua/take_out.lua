-- take_out: look into a session's outbox, and keep others out of it for a while. The entries stay until they are settled.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own due out
-- ARGV now session holder lease_ms most
-- Returns {'done', first, entries}: the number of the first entry, and at most so many | {'held', for_ms} | {'gone'}
local ms = clock(now)
local h = redis.call('HMGET', own, 'out_at', 'out_by', 'out_until', 'out_base', 'erasing', 'token', 'seq')
if not h[7] or h[5] then return {'gone'} end
if not h[1] then return {'done', tonumber(h[4] or 0), {}} end
if h[2] and h[2] ~= holder and tonumber(h[3]) > ms then return {'held', whole(h[3] - ms)} end
redis.call('HSET', own, 'out_by', holder, 'out_until', whole(ms + lease_ms), 'out_at', whole(ms + lease_ms))
-- Should the holder die, somebody looks again.
if h[6] == '' then redis.call('ZADD', due, 'LT', whole(ms + lease_ms), session) end
return {'done', tonumber(h[4] or 0), redis.call('LRANGE', out, 0, most - 1)}

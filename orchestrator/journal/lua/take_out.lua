-- take_out: look into a session's outbox, and keep others out of it for a while. The entries stay until they are settled.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own due out
-- ARGV now session holder turn lease_ms most
-- turn: how often the outbox had been settled when the caller looked.
-- Returns {'done', first, tries, entries}: the number of the first entry, how often it was taken as the first, and at most so many |
--         {'held', for_ms}: by another, or until the next try | {'gone'} | {'late'}: it was settled meanwhile
local ms = clock(now)
local h = redis.call('HMGET', own, 'seq', 'out_at', 'out_by', 'out_until', 'out_base', 'out_tries', 'token', 'erasing', 'out_turn')
if not h[1] or h[8] then return {'gone'} end
local base, tries = tonumber(h[5] or 0), tonumber(h[6] or 0)
if (h[9] or '0') ~= turn then return {'late'} end
if not h[2] then return {'done', base, 0, {}} end
if h[3] ~= holder then
  if h[4] and tonumber(h[4]) > ms then return {'held', whole(h[4] - ms)} end
  tries = tries + 1
end
local till = whole(ms + lease_ms)
redis.call('HSET', own, 'out_by', holder, 'out_until', till, 'out_at', till, 'out_tries', tries)
-- Should the holder die, somebody looks again.
redis.call('ZADD', due, 'LT', till, session)
return {'done', base, tries, redis.call('LRANGE', out, 0, most - 1)}

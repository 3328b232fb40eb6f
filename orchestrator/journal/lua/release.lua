-- release: give a session back in the middle, and ring if there is more to do. For draining; a commit releases by itself.
-- A token that is not there any more has been released already.
-- FLAGS allow-oom
-- PARTS clock ring rest
-- KEYS own inbox due
-- ARGV now session token grace_ms template wakes queue broker_db journal_db what
-- Returns {'done', ring} | {'superseded', 0} | {'gone', 0}
local ms = clock(now)
local h = redis.call('HMGET', own, 'token', 'work', 'floor', 'next_timer', 'deployment', 'status', 'deadline', 'out_at', 'turn')
if not h[1] then return {'gone', 0} end
if h[1] ~= token then return {'superseded', 0} end
redis.call('HSET', own, 'token', '', 'lease', 0, 'left', token)
local more = h[2] == '1' or h[6] == 'ending' or redis.call('ZRANGEBYSCORE', inbox, '(' .. h[3], '+inf', 'LIMIT', 0, 1)[1]
if more then
  redis.call('ZADD', due, whole(ms + grace_ms), session)
  return {'done', ring(own, h[5], session, what, ms)}
end
rest_until(due, session, next_look(ms, h[6], tonumber(h[4]), ends_at(h[9], h[7]), tonumber(h[8] or 0), tonumber(grace_ms)))
return {'done', 0}

-- claim: use a link to a request, once. Whoever says it again with the same delivery is told the same.
-- FLAGS deny-oom
-- PARTS clock
-- KEYS link
-- ARGV now delivery
-- Returns {'done', now, session, request, owner}: the delivery that the link was used for | {'gone'}
local ms = clock(now)
local h = redis.call('HMGET', link, 'session', 'request')
if not h[1] then return {'gone'} end
redis.call('HSETNX', link, 'owner', delivery)
return {'done', whole(ms), h[1], h[2], redis.call('HGET', link, 'owner')}

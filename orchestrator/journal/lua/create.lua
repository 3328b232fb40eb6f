-- create: bring a session into being, with its first message if it has one, and ring for it.
-- The id is the caller's, so a repeat finds the hash and changes nothing. So does whoever comes with an operation that has made a session:
-- it is an address of the session's own shard, and stays while that session is live, and for a day after it was made.
-- FLAGS deny-oom
-- PARTS clock ring blobs open
-- KEYS own inbox box seen due index who adrs adr erased
-- ARGV now session agent deployment reads parent root life_ms mute grace_ms delivery head body who_is operation listed grave blobs base template wakes queue broker_db journal_db
-- operation: the key of that address ('': none, and `adr` is not looked at); listed: what the session's list says of it.
-- grave: what would be in `erased` if this id had been erased.
-- life_ms = 0: the session has no deadline. mute: 1 for one that asks nobody, else ''.
-- Returns {'created' | 'again', now, ring, session}: ring = 1 asks the caller to publish the wake itself. {'gone'}: it was erased.
--         {'blobs', session}: write the files of its message first.
local DAY_MS = 86400000
local ms = clock(now)
if redis.call('EXISTS', own) == 1 then return {'again', whole(ms), 0, session} end
if redis.call('ZSCORE', erased, grave) then return {'gone'} end
if operation ~= '' then
  local first = redis.call('GET', adr)
  if first then
    local h = redis.call('HMGET', base .. 'own:' .. first, 'status', 'created')
    if h[1] and (h[1] == 'live' or tonumber(h[2]) > ms - DAY_MS) then return {'again', whole(ms), 0, first} end
  end
end
if lacks_blobs(session) then return {'blobs', session} end
if operation ~= '' then
  redis.call('HSET', adrs, operation, 'o' .. whole(ms) .. ' ' .. listed)
  redis.call('SET', adr, session)
end
local k = {own = own, inbox = inbox, box = box, seen = seen, due = due, index = index, who = who}
return {'created', whole(ms), open(k, session, ms, delivery), session}

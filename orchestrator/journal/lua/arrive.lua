-- arrive: something comes to an address: it goes to the session that the address leads to, or begins one.
-- Looked at in this order: a key that is known (its first answer, whatever has become of its session), a session of this shard that is
-- live, one of another shard, nobody. A session that is not live is nobody.
-- FLAGS deny-oom
-- PARTS clock ring blobs open admit door
-- KEYS own inbox box seen due index news who adrs adr adm adms erased
-- ARGV now door session agent deployment reads parent root life_ms mute id kind guard head body who_is limit grace_ms expect only listed grave blobs base template wakes queue broker_db journal_db
-- The keys are those of `session`, the id a new session gets; `door` is the address's key, `listed` what the list of that session says of it.
-- only: who must take part in the session that is there, or '' for anybody.
-- expect: a session elsewhere that the caller has just seen ended, without having seen this delivery.
-- Admission keys follow as pairs: the key and the digest of what it stands for, which is not compared if empty.
-- A session elsewhere is written down before it is answered, so that a repeat goes to it again, whoever has the address then.
-- Returns {'accepted' | 'started' | 'again', now, ring, session, delivery, outcome, started, deployment} | {'elsewhere', now, session, delivery} |
--         {'reused', key} | {'full', waiting, session} | {'nobody'}: there is none to control | {'gone'}: that id was erased |
--         {'taken'}: by a session in which `only` takes no part |
--         {'blobs', session}: write its files for that session first.
local ms = clock(now)
local first, known = nil, {}
for i = rest + 1, #ARGV, 2 do
  local entry = remembered(ARGV[i], ms)
  if entry then
    if ARGV[i + 1] ~= '' and entry.digest ~= '' and entry.digest ~= ARGV[i + 1] then return {'reused', ARGV[i]} end
    known[i] = entry
    -- Of two keys of one message, what is done counts more than what may have been.
    if not first or first.state == 'p' and entry.state == 'd' then first = entry end
  end
end

local function answer(word, ring_it, entry, label)
  return {word, whole(ms), ring_it, entry.session, entry.delivery, entry.outcome, entry.started, label or ''}
end
local function remember_all(entry, only_new)
  for i = rest + 1, #ARGV, 2 do
    local before = known[i]
    if not (only_new and before) then remember(ARGV[i], ARGV[i + 1] == '' and before and before.digest or ARGV[i + 1], entry) end
  end
  put_away(ms)
  return entry
end
local function elsewhere(entry) return {'elsewhere', whole(ms), entry.session, entry.delivery} end

if first and not (first.state == 'p' and first.session == expect) then
  -- Another key of the same message is known from now on. What is not done yet is not remembered for longer than its session does.
  if first.state == 'd' then remember_all({at = ms, outcome = first.outcome, started = first.started, state = 'd', delivery = first.delivery, session = first.session}, true)
  else remember_all(first, true) end
  if first.state == 'p' then return elsewhere(first) end
  return answer('again', 0, first)
end
-- It keeps the id under which it went elsewhere.
if first then id = first.delivery end

local function keys_of(name)
  local k = {}
  for _, kind_of in ipairs({'own', 'inbox', 'box', 'seen', 'who'}) do k[kind_of] = base .. kind_of .. ':' .. name end
  k.due, k.index, k.news = due, index, news
  return k
end
local owner = redis.call('GET', adr)
if owner and owner ~= expect and string.sub(owner, -2) ~= string.sub(session, -2) then
  return elsewhere(remember_all({at = ms, outcome = 0, started = 0, state = 'p', delivery = id, session = owner}))
end
if owner and owner ~= expect then
  local k = keys_of(owner)
  local h = redis.call('HMGET', k.own, 'status', 'deployment')
  if h[1] == 'live' and only ~= '' and redis.call('SISMEMBER', k.who, only) == 0 then return {'taken'} end
  if h[1] == 'live' then
    local said = admit(k, owner, ms, '')
    if said[1] == 'full' then return {'full', said[2], owner} end
    if said[1] == 'blobs' then return said end
    local entry = {at = ms, outcome = said[3], started = 0, state = 'd', delivery = id, session = owner}
    return answer(said[1], said[2], remember_all(entry), h[2])
  end
end
if kind ~= 'message' then
  for i = rest + 1, #ARGV, 2 do
    redis.call('HDEL', adm, ARGV[i])
    redis.call('ZREM', adms, door .. ':' .. ARGV[i])
  end
  return {'nobody'}
end
if redis.call('ZSCORE', erased, grave) then return {'gone'} end
local entry = {at = ms, outcome = 0, started = 1, state = 'd', delivery = id, session = session}
if redis.call('EXISTS', own) == 1 then return answer('again', 0, entry) end
if lacks_blobs(session) then return {'blobs', session} end
redis.call('HSET', adrs, door, 'o' .. whole(ms) .. ' ' .. listed)
redis.call('SET', adr, session)
remember_all(entry)
local k = {own = own, inbox = inbox, box = box, seen = seen, due = due, index = index, who = who}
return answer('started', open(k, session, ms, id), entry, deployment)

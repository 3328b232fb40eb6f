-- deliver: admit something into a session's inbox, once; ring if nobody owns the session, else tell its owner.
-- Looked at in this order: no such session, an id already seen (its first answer, whatever the state is now), ended, full; else accepted.
-- FLAGS deny-oom
-- PARTS clock ring
-- KEYS own inbox box seen due index news
-- ARGV now id session kind guard head body reads limit grace_ms template wakes queue broker_db journal_db
-- Returns {'accepted' | 'again', now, ring, outcome, n} with outcome 0 taken, 1 cancelling, 2 other_turn, 3 nothing_runs;
--         {'gone'} | {'ended'} | {'full', waiting}.
local KEEP_MS = 86400000
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'waiting', 'n', 'seq', 'turn', 'token', 'rung', 'deployment', 'cancel_n', 'judged', 'reads', 'created', 'kind')
if not h[1] then return {'gone'} end
-- The score keeps the answer beside the time: four outcomes, two bits.
local was = redis.call('ZSCORE', seen, id)
if was then return {'again', whole(ms), 0, math.fmod(tonumber(was), 4), 0} end
if h[1] ~= 'live' then return {'ended'} end
local outcome = 0
if kind == 'message' then
  if tonumber(h[2]) >= tonumber(limit) then return {'full', tonumber(h[2])} end
elseif kind == 'cancel' then
  local open = h[5]
  if h[13] ~= 'session' then outcome = 1
  elseif open ~= '' and (guard == '' or guard == open) then outcome = 1
  elseif guard ~= '' then outcome = 2
  elseif open == '' and tonumber(h[2]) > 0 then outcome = 1
  else outcome = 3 end
end
redis.call('ZREMRANGEBYSCORE', seen, '-inf', whole((ms - KEEP_MS) * 4))
redis.call('ZADD', seen, whole(ms * 4 + outcome), id)
-- A cancel that has nothing to stop, or repeats the last one, is accepted and leaves nothing behind.
local repeats = kind == 'cancel' and h[9] == h[3] and tonumber(h[9]) > tonumber(h[10])
if outcome > 1 or repeats then return {'accepted', whole(ms), 0, outcome, 0} end
-- A number does not come again when the store has lost its tail and an owner still holds what is gone: it moves with the time.
local n = math.max(tonumber(h[3]) + 1, ms - tonumber(h[12]))
redis.call('HSET', own, 'n', whole(n))
redis.call('ZADD', inbox, whole(n), id)
redis.call('HSET', box, id, h[4] .. ':' .. head)
if body ~= '' then redis.call('HSET', box, 'b:' .. id, body) end
if kind == 'message' then redis.call('HINCRBY', own, 'waiting', 1) end
if kind == 'cancel' then redis.call('HSET', own, 'cancel_n', whole(n)) end
if tonumber(reads) > tonumber(h[11]) then redis.call('HSET', own, 'reads', reads) end
redis.call('ZADD', index, whole(ms), session)
if h[6] ~= '' then
  redis.call('PUBLISH', news, session .. ' ' .. whole(n) .. ' ' .. kind)
  return {'accepted', whole(ms), 0, outcome, n}
end
redis.call('ZADD', due, 'LT', whole(ms + grace_ms), session)
if h[7] ~= '0' then return {'accepted', whole(ms), 0, outcome, n} end
return {'accepted', whole(ms), ring(own, h[8], session, id, ms), outcome, n}

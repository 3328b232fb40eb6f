-- own: become the one who may write a session, if there is something to do and nobody else holds it.
-- The token is made by the caller for this call: a repeat of it gets the same answer and counts no second attempt.
-- FLAGS allow-oom
-- PARTS clock heads rest
-- KEYS own snapshot inbox box due out
-- ARGV now session token made_ms instead deployment reads alone lost lease_ms grace_ms most
-- A session that is ending is given to whoever asks, its ending delivery first among the heads; one that is being erased to nobody.
-- `instead` is a token of the caller's own that it gives up; `lost` = 1 asks for the session even if it is idle, to say what was lost.
-- Returns {'gone'} | {'ended', out} | {'not_yours', deployment} | {'too_new', reads} | {'leased', for_ms, out} | {'later', for_ms} | {'idle', out} |
--         {'granted', epoch, attempt, faults, now, seq, events, gen, rows, judged, last_row, fact_base, agent, parent, snapshot, heads, life, deadline, out, may_ask}
--         {'stale'}: the call is older than the lease; nobody waits for it any more. `out` is how many entries the outbox has.
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'deployment', 'reads', 'token', 'lease', 'work', 'next_timer', 'judged', 'floor', 'attempt',
  'epoch', 'seq', 'events', 'gen', 'rows', 'last_row', 'fact_base', 'agent', 'parent', 'faults', 'left', 'deadline', 'out_at', 'end', 'erasing', 'mute', 'turn')
if not h[1] or h[25] then
  redis.call('ZREM', due, session)
  return {'gone'}
end
local lease, judged, timer, deadline, out_at = tonumber(h[5]), tonumber(h[8]), tonumber(h[7]), tonumber(h[22]), tonumber(h[23] or 0)
local above = h[9]
local function outbox() return out_at > 0 and redis.call('LLEN', out) or 0 end

local function grant(epoch, attempt, faults)
  local text = redis.call('GET', snapshot) or ''
  local first = h[1] == 'ending' and h[24] or nil
  return {'granted', epoch, attempt, faults, whole(ms), tonumber(h[12]), tonumber(h[13]), tonumber(h[14]), tonumber(h[15]), judged, h[16],
    tonumber(h[17]), h[18], h[19], text, heads(inbox, box, above, tonumber(most), first), h[1], deadline, outbox(), h[26] and 0 or 1}
end

if h[4] == token then return grant(tonumber(h[11]), tonumber(h[10]), tonumber(h[20])) end
if h[21] == token or ms - tonumber(made_ms) > tonumber(lease_ms) then return {'stale'} end
redis.call('HSET', own, 'rung', 0, 'rings', 0)
local over = ends_at(h[27], h[22])
local function rests() rest_until(due, session, next_look(ms, h[1], timer, over, out_at, tonumber(grace_ms))) end
if h[1] == 'ended' then
  rests()
  return {'ended', outbox()}
end
local mine = h[4] ~= '' and h[4] == instead
if h[4] ~= '' and not mine and lease > ms then
  rest_until(due, session, owned_look(ms, lease, out_at, tonumber(grace_ms)))
  return {'leased', whole(lease - ms), outbox()}
end
if tonumber(h[3]) > tonumber(reads) then
  redis.call('ZADD', due, whole(ms + 5000), session)
  return {'too_new', tonumber(h[3])}
end
local head = redis.call('ZRANGEBYSCORE', inbox, '(' .. above, '+inf', 'LIMIT', 0, 1)[1]
local work = h[6] == '1' or head or (timer > 0 and timer <= ms) or h[1] == 'ending' or (timer == 0 and over > 0 and over <= ms)
if not work and h[4] == '' and lost ~= '1' then
  rests()
  return {'idle', outbox()}
end
local attempt, faults = tonumber(h[10]), tonumber(h[20])
if h[4] ~= '' and not mine then
  -- An unreleased lease has run out: its owner died in the middle. The more often that happens, the longer we wait.
  local waits = {0, 1000, 5000, 25000}
  local from = lease + waits[math.min(attempt + 1, 4)]
  if from > ms then
    redis.call('ZADD', due, whole(from), session)
    return {'later', whole(from - ms)}
  end
  if attempt >= 1 and alone == '0' then
    redis.call('ZADD', due, whole(ms + 1000), session)
    return {'later', '1000'}
  end
  attempt = attempt + 1
end
local epoch = tonumber(h[11]) + 1
redis.call('HSET', own, 'token', token, 'lease', whole(ms + lease_ms), 'epoch', epoch, 'attempt', attempt)
rest_until(due, session, owned_look(ms, ms + lease_ms, out_at, tonumber(grace_ms)))
return grant(epoch, attempt, faults)

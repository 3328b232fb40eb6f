-- own: become the one who may write a session, if there is something to do and nobody else holds it.
-- The token is made by the caller for this call: a repeat of it gets the same answer and counts no second attempt.
-- FLAGS allow-oom
-- PARTS clock heads
-- KEYS own snapshot inbox box due
-- ARGV now session token made_ms instead deployment reads alone lost lease_ms most
-- `instead` is a token of the caller's own that it gives up; `lost` = 1 asks for the session even if it is idle, to say what was lost.
-- Returns {'gone'} | {'ended'} | {'not_yours', deployment} | {'too_new', reads} | {'leased', for_ms} | {'later', for_ms} | {'idle'} |
--         {'granted', epoch, attempt, faults, now, seq, events, gen, rows, judged, last_row, fact_base, agent, parent, snapshot, heads}
--         {'stale'}: the call is older than the lease; nobody waits for it any more.
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'deployment', 'reads', 'token', 'lease', 'work', 'next_timer', 'judged', 'floor', 'attempt',
  'epoch', 'seq', 'events', 'gen', 'rows', 'last_row', 'fact_base', 'agent', 'parent', 'faults', 'left')
if not h[1] then
  redis.call('ZREM', due, session)
  return {'gone'}
end
local lease, judged, timer = tonumber(h[5]), tonumber(h[8]), tonumber(h[7])
local above = h[9]

local function grant(epoch, attempt, faults)
  local text = redis.call('GET', snapshot) or ''
  return {'granted', epoch, attempt, faults, whole(ms), tonumber(h[12]), tonumber(h[13]), tonumber(h[14]), tonumber(h[15]), judged, h[16],
    tonumber(h[17]), h[18], h[19], text, heads(inbox, box, above, tonumber(most))}
end

if h[4] == token then return grant(tonumber(h[11]), tonumber(h[10]), tonumber(h[20])) end
if h[21] == token or ms - tonumber(made_ms) > tonumber(lease_ms) then return {'stale'} end
redis.call('HSET', own, 'rung', 0, 'rings', 0)
if h[1] == 'ended' then
  redis.call('ZREM', due, session)
  return {'ended'}
end
local mine = h[4] ~= '' and h[4] == instead
if h[4] ~= '' and not mine and lease > ms then
  redis.call('ZADD', due, whole(lease), session)
  return {'leased', whole(lease - ms)}
end
if tonumber(h[3]) > tonumber(reads) then
  redis.call('ZADD', due, whole(ms + 5000), session)
  return {'too_new', tonumber(h[3])}
end
local head = redis.call('ZRANGEBYSCORE', inbox, '(' .. above, '+inf', 'LIMIT', 0, 1)[1]
local work = h[6] == '1' or head or (timer > 0 and timer <= ms)
if not work and h[4] == '' and lost ~= '1' then
  if timer > 0 then redis.call('ZADD', due, whole(timer), session) else redis.call('ZREM', due, session) end
  return {'idle'}
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
redis.call('ZADD', due, whole(ms + lease_ms), session)
return grant(epoch, attempt, faults)

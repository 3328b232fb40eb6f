-- create: bring a session into being, with its first message if it has one, and ring for it.
-- The id is the caller's, so a repeat finds the hash and changes nothing.
-- FLAGS deny-oom
-- PARTS clock ring
-- KEYS own inbox box seen due index
-- ARGV now session agent deployment reads parent root life_ms grace_ms delivery head body template wakes queue broker_db journal_db
-- Returns {'created' | 'again', now, ring}: ring = 1 asks the caller to publish the wake itself.
local ms = clock(now)
if redis.call('EXISTS', own) == 1 then return {'again', whole(ms), 0} end
local waiting = delivery == '' and 0 or 1
redis.call('HSET', own, 'kind', 'session', 'agent', agent, 'status', 'live', 'turn', '', 'deployment', deployment, 'reads', reads,
  'token', '', 'lease', 0, 'epoch', 0, 'seq', 0, 'fact_base', 0, 'events', 0, 'gen', 0, 'rows', 0, 'judged', 0, 'floor', 0, 'waiting', waiting,
  'rung', 0, 'work', 0, 'next_timer', 0, 'attempt', 0, 'attempt_key', '', 'faults', 0, 'cancel_n', 0, 'last_commit', '', 'last_row', '',
  'left', '', 'n', waiting, 'rings', 0, 'created', whole(ms), 'deadline', whole(ms + life_ms), 'parent', parent, 'root', root)
redis.call('ZADD', index, whole(ms), session)
if waiting == 0 then return {'created', whole(ms), 0} end
redis.call('ZADD', inbox, 1, delivery)
redis.call('HSET', box, delivery, '0:' .. head, 'b:' .. delivery, body)
redis.call('ZADD', seen, whole(ms * 4), delivery)
redis.call('ZADD', due, whole(ms + grace_ms), session)
return {'created', whole(ms), ring(own, deployment, session, delivery, ms)}

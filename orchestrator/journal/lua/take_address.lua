-- take_address: an address leads to a session from now on, if it leads to nobody who is live.
-- FLAGS deny-oom
-- PARTS clock
-- KEYS adr
-- ARGV now session expect made_ms late_ms base
-- expect: an owner of another shard that the caller has just seen not live. A call that runs too late is refused: its session may be gone.
-- Returns {'done'} | {'taken', owner} | {'elsewhere', owner}: look whether that one is live | {'stale'}
local owner = redis.call('GET', adr)
if owner == session then return {'done'} end
if clock(now) - made_ms > tonumber(late_ms) then return {'stale'} end
if owner and owner ~= expect then
  -- Of its own shard it can be looked at here: a key that is not there is of another one, or of a session that is gone.
  local life = redis.call('HGET', base .. 'own:' .. owner, 'status')
  if life == 'live' then return {'taken', owner} end
  if not life and string.sub(base, -4, -3) ~= string.sub(owner, -2) then return {'elsewhere', owner} end
end
redis.call('SET', adr, session)
return {'done'}

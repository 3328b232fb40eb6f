-- take_address: an address leads to a session from now on, if it leads to nobody who is live.
-- FLAGS deny-oom
-- PARTS clock fence
-- KEYS adr adm adms
-- ARGV now session door grave number expect base
-- expect: an owner of another shard that the caller has just seen not live.
-- Returns {'done'} | {'taken', owner} | {'elsewhere', owner}: look whether that one is live | {'late'}: it was dropped, or the session ended
local function life(name) return redis.call('HGET', base .. 'own:' .. name, 'status') end
-- What is not there is of another shard, or gone.
local function is_here(name) return string.sub(base, -4, -3) == string.sub(name, -2) end
if overtaken() or is_here(session) and life(session) ~= 'live' then return {'late'} end
local owner = redis.call('GET', adr)
if owner and owner ~= session and owner ~= expect then
  if not is_here(owner) then return {'elsewhere', owner} end
  if life(owner) == 'live' then return {'taken', owner} end
end
redis.call('SET', adr, session)
come_this_far(clock(now))
return {'done'}

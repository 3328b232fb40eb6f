-- append: add events that no commit vouches for yet (deltas, partials) to the stream of a session one owns.
-- FLAGS deny-oom
-- PARTS clock
-- KEYS own evt tail
-- ARGV now session token at first_id
-- The lines follow. `at` is the place of the first, `first_id` its event id: a repeat is recognised by them.
-- Returns {'done' | 'landed', tail, n} | {'behind', seq, events} | {'superseded'} | {'gone'}
local h = redis.call('HMGET', own, 'token', 'events', 'n', 'seq')
if not h[1] then return {'gone'} end
local there = tonumber(h[2])
if tonumber(at) > there then return {'behind', tonumber(h[4]), there} end
if h[1] ~= token then return {'superseded'} end
if tonumber(at) < there then
  local line = redis.call('LINDEX', evt, at)
  if line and string.find(line, first_id, 1, true) then return {'landed', there, tonumber(h[3])} end
  return {'superseded'}
end
local lines = #ARGV - rest
for first = rest + 1, #ARGV, 1000 do redis.call('RPUSH', evt, unpack(ARGV, first, math.min(first + 999, #ARGV))) end
redis.call('HSET', own, 'events', there + lines)
redis.call('PUBLISH', tail, session .. ' ' .. (there + lines))
return {'done', there + lines, tonumber(h[3])}

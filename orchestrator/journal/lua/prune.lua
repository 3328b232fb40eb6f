-- prune: put stubs in the place of deltas that no reader needs in full any more, and say when to look again.
-- Only a line that still is what the caller read is replaced, so an index keeps its id for ever.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own evt tidy
-- ARGV now session upto again_at seen later_ms
-- again_at = 0: nothing is left, unless the stream has grown beyond the `seen` events the caller looked at; then again in later_ms.
-- Pairs follow: the place and its stub (which begins with a letter, where a line begins with a brace).
-- Returns {'done', replaced} | {'gone', 0}
if redis.call('EXISTS', own) == 0 then
  redis.call('ZREM', tidy, session)
  return {'gone', 0}
end
local replaced = 0
for i = rest + 1, #ARGV, 2 do
  local line = redis.call('LINDEX', evt, ARGV[i])
  if line and string.sub(line, 1, 1) == '{' and string.find(line, string.sub(ARGV[i + 1], 2, 27), 1, true) then
    redis.call('LSET', evt, ARGV[i], ARGV[i + 1])
    replaced = replaced + 1
  end
end
redis.call('HSET', own, 'pruned', upto)
local events = redis.call('HGET', own, 'events')
if again_at ~= '0' then redis.call('ZADD', tidy, again_at, session)
elseif events == seen then redis.call('ZREM', tidy, session)
else redis.call('ZADD', tidy, whole(clock(now) + later_ms), session) end
return {'done', replaced}

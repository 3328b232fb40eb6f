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
local h = redis.call('HMGET', own, 'events', 'erase_at')
local again = tonumber(again_at)
if again == 0 and h[1] ~= seen then again = clock(now) + later_ms end
-- The day of its erasure stays in the index.
if h[2] and (again == 0 or tonumber(h[2]) < again) then again = tonumber(h[2]) end
if again > 0 then redis.call('ZADD', tidy, whole(again), session) else redis.call('ZREM', tidy, session) end
return {'done', replaced}

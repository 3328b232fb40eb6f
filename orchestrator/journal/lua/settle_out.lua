-- settle_out: the first entries of the outbox are done with; let others look into it again, at a later time if something is left.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own due out
-- ARGV now session holder done retry_ms grace_ms
-- Returns {'done', left} | {'superseded'}: another holds it, or this was settled before | {'gone'}
local ms = clock(now)
local h = redis.call('HMGET', own, 'out_by', 'out_base', 'token', 'erasing')
if not h[3] or h[4] then return {'gone'} end
if h[1] ~= holder then return {'superseded'} end
local count = math.min(tonumber(done), redis.call('LLEN', out))
if count > 0 then
  redis.call('LTRIM', out, count, -1)
  redis.call('HSET', own, 'out_base', whole((h[2] or 0) + count))
  redis.call('HDEL', own, 'out_tries')
end
redis.call('HINCRBY', own, 'out_turn', 1)
local left = redis.call('LLEN', out)
if left == 0 then
  redis.call('HDEL', own, 'out_at', 'out_by', 'out_until')
  return {'done', 0}
end
-- Who has more to do goes on at once; somebody comes if nobody does.
local again = whole(ms + (retry_ms ~= '0' and retry_ms or grace_ms))
redis.call('HSET', own, 'out_by', '', 'out_until', whole(ms + retry_ms), 'out_at', again)
redis.call('ZADD', due, 'LT', again, session)
return {'done', left}

-- settle_out: the first entries of the outbox are done with; let others look into it again, at a later time if something is left.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own due out
-- ARGV now session holder done retry_ms
-- Returns {'done', left} | {'superseded'}: another holds it, or this was settled before | {'gone'}
local ms = clock(now)
local h = redis.call('HMGET', own, 'out_by', 'out_base', 'token')
if not h[3] then return {'gone'} end
if h[1] ~= holder then return {'superseded'} end
local count = math.min(tonumber(done), redis.call('LLEN', out))
if count > 0 then
  redis.call('LTRIM', out, count, -1)
  redis.call('HSET', own, 'out_base', tonumber(h[2] or 0) + count)
end
redis.call('HDEL', own, 'out_by', 'out_until')
local left = redis.call('LLEN', out)
if left == 0 then
  redis.call('HDEL', own, 'out_at')
  return {'done', 0}
end
redis.call('HSET', own, 'out_at', whole(ms + retry_ms))
if h[3] == '' then redis.call('ZADD', due, 'LT', whole(ms + retry_ms), session) end
return {'done', left}

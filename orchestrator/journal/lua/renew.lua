-- renew: keep the leases of many sessions of one shard. A session that was released, or has another owner, is left alone.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS due
-- ARGV now lease_ms
-- The own keys follow in KEYS; session and token of each in ARGV.
-- Returns now, then 'done' | 'superseded' | 'gone' for each.
local ms = clock(now)
local answers = {whole(ms)}
for i = 2, #KEYS do
  local session, token = ARGV[rest + 2 * i - 3], ARGV[rest + 2 * i - 2]
  local held = redis.call('HGET', KEYS[i], 'token')
  if not held then answers[i] = 'gone'
  elseif held == '' or held ~= token then answers[i] = 'superseded'
  else
    redis.call('HSET', KEYS[i], 'lease', whole(ms + lease_ms))
    redis.call('ZADD', due, whole(ms + lease_ms), session)
    answers[i] = 'done'
  end
end
return answers

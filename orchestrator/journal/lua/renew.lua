-- renew: keep the leases of many sessions of one shard. A session that was released, or has another owner, is left alone.
-- FLAGS allow-oom
-- PARTS clock rest
-- KEYS due
-- ARGV now lease_ms grace_ms
-- The own keys follow in KEYS; session and token of each in ARGV.
-- Returns now, then 'done' | 'superseded' | 'gone' for each.
local ms = clock(now)
local answers = {whole(ms)}
for i = 2, #KEYS do
  local session, token = ARGV[rest + 2 * i - 3], ARGV[rest + 2 * i - 2]
  local h = redis.call('HMGET', KEYS[i], 'token', 'out_at')
  local held = h[1]
  if not held then answers[i] = 'gone'
  elseif held == '' or held ~= token then answers[i] = 'superseded'
  else
    redis.call('HSET', KEYS[i], 'lease', whole(ms + lease_ms))
    rest_until(due, session, owned_look(ms, ms + lease_ms, tonumber(h[2] or 0), tonumber(grace_ms)))
    answers[i] = 'done'
  end
end
return answers

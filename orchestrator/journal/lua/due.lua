-- due: look at the sessions whose time has come and ring for those that need a worker. Taking them is atomic: many keepers may call this.
-- A wake that is still in its queue is left alone: wakes are numbered, a queue is first in, first out, so a session whose number is
-- below the oldest one waiting has lost its wake.
-- FLAGS allow-oom
-- PARTS clock ring rest
-- KEYS
-- ARGV now pause lease_ms grace_ms limit prefix template wakes queue broker_db journal_db
-- The due keys follow in KEYS (one per shard); their shards in ARGV. pause = 1: let one lease pass before any lease counts as dead.
-- Returns {now, more, taken, {label, session, key, ...}}: the last are wakes that the caller must publish itself.
local ms = clock(now)
local left, taken, publish, oldest = tonumber(limit), 0, {}, {}

local function oldest_number(label)
  if template == '' then return nil end
  if oldest[label] == nil then
    local list = queue .. label
    if broker_db ~= journal_db then redis.call('SELECT', broker_db) end
    local text = redis.call('LINDEX', list, -1)
    if broker_db ~= journal_db then redis.call('SELECT', journal_db) end
    oldest[label] = text and tonumber(string.match(text, '"number":(%d+)')) or false
  end
  return oldest[label]
end

local function look(key, shard, session)
  local hash = prefix .. ':{' .. shard .. '}:own:' .. session
  local h = redis.call('HMGET', hash, 'token', 'lease', 'work', 'floor', 'turn', 'next_timer', 'rung', 'deployment', 'status', 'attempt_key', 'rings', 'deadline', 'out_at')
  if not h[1] then return redis.call('ZREM', key, session) end
  -- One damaged session must not stop the keepers of all.
  local lease, timer, deadline, out_at = tonumber(h[2]) or 0, tonumber(h[6]) or 0, ends_at(h[5], h[12]), tonumber(h[13]) or 0
  local function come(moment) return moment > 0 and moment <= ms end
  -- Whoever owns it may be busy for long: its outbox is for others as well.
  if h[1] ~= '' and lease > ms and not come(out_at) then
    return rest_until(key, session, owned_look(ms, lease, out_at, tonumber(grace_ms)))
  end
  if h[1] ~= '' and lease <= ms and pause == '1' then return redis.call('ZADD', key, whole(ms + lease_ms), session) end
  if h[1] == '' then
    local inbox = prefix .. ':{' .. shard .. '}:inbox:' .. session
    local asks = h[9] == 'ending' or h[9] ~= 'ended' and (h[3] == '1' or come(timer) or timer == 0 and come(deadline)
      or redis.call('ZRANGEBYSCORE', inbox, '(' .. (h[4] or '0'), '+inf', 'LIMIT', 0, 1)[1])
    if not asks and not come(out_at) then
      return rest_until(key, session, next_look(ms, h[9], timer, deadline, out_at, tonumber(grace_ms)))
    end
  end
  local rung, first = tonumber(h[7]) or 0, oldest_number(h[8])
  if template ~= '' and rung > 0 and first and rung >= first then
    return redis.call('ZADD', key, whole(ms + grace_ms), session)
  end
  local what = h[10] ~= '' and h[10] or h[5]
  local rings = redis.call('HINCRBY', hash, 'rings', 1)
  -- Without numbers we back off, we may be ringing in vain. With them a wake is known to be out of its queue: one that is lost
  -- twice in a row is missed sooner than the first.
  local wait = template == '' and math.min(grace_ms * 2 ^ (rings - 1), 60000) or math.min(grace_ms, grace_ms / 8 * 2 ^ math.max(0, rings - 3))
  redis.call('ZADD', key, whole(ms + wait), session)
  taken = taken + 1
  if ring(hash, h[8], session, what, ms) == 1 then
    publish[#publish + 1] = h[8] publish[#publish + 1] = session publish[#publish + 1] = what
  end
end

for i, key in ipairs(KEYS) do
  if left <= 0 then break end
  local found = redis.call('ZRANGEBYSCORE', key, '-inf', whole(ms), 'LIMIT', 0, left)
  for _, session in ipairs(found) do look(key, ARGV[rest + i], session) end
  left = left - #found
end
return {whole(ms), left <= 0 and 1 or 0, taken, publish}

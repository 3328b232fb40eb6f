-- heartbeat: a worker lives, or leaves. A label's rank is the time of its first beat.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS deployments workers
-- ARGV now label worker reads digest leave
-- Returns {now, rank}
local ms = clock(now)
local member = label .. '|' .. worker
if leave == '1' then
  redis.call('HDEL', workers, member)
else
  -- A new one looks for those that never said goodbye, so that the hash does not grow with every crash.
  if redis.call('HSET', workers, member, whole(ms) .. ' ' .. reads .. ' ' .. digest) == 1 then
    local all = redis.call('HGETALL', workers)
    for i = 1, #all, 2 do
      if tonumber(string.match(all[i + 1], '^%d+')) < ms - 3600000 then redis.call('HDEL', workers, all[i]) end
    end
  end
end
local known = redis.call('HGET', deployments, label)
local rank = known and string.match(known, '^%d+') or whole(ms)
redis.call('HSET', deployments, label, rank .. ' ' .. reads .. ' ' .. digest)
return {whole(ms), rank}

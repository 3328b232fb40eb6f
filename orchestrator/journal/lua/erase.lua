-- erase: a session goes for good, step by step; whoever says it again goes on where it is.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own snapshot inbox box seen fact evt rec state who req blobs out adrs due tidy index news erased
-- ARGV now session grave step hist gen base
-- step = begin: from now on nobody owns it, nobody delivers into it, and the keeper goes on if the caller does not.
--        forgotten: these addresses (their keys follow) lead to it no more, and their doors do not name it.
--        bodies: what it holds goes, and up to 500 generations of its history from `gen` on, whose key begins with `hist`.
--        end: the rest, and the session itself.
-- Returns {'done', next}: the generation to go on with, or -1 | {'gone'}: nothing is left | {'again'}: nobody has begun, or the store has lost
--         that; nothing was done
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'token', 'n', 'gen', 'erasing')
if not h[1] then
  redis.call('ZREM', tidy, session)
  redis.call('ZREM', due, session)
  return {'gone'}
end
if step ~= 'begin' and not h[5] then return {'again'} end
if step == 'begin' and not h[5] then
  redis.call('HSET', own, 'erasing', 1, 'erase_at', whole(ms), 'token', '', 'lease', 0)
  if h[2] ~= '' then redis.call('HSET', own, 'left', h[2]) end
  if h[1] == 'live' then redis.call('HSET', own, 'status', 'ending') end
  redis.call('ZREM', due, session)
  redis.call('ZREM', index, session)
  redis.call('UNLINK', who)
  redis.call('ZADD', tidy, whole(ms), session)
  -- A creation that runs late would bring the id back.
  redis.call('ZREMRANGEBYSCORE', erased, '-inf', whole(ms - 86400000))
  redis.call('ZADD', erased, whole(ms), grave)
  redis.call('PUBLISH', news, session .. ' ' .. whole(h[3] + 1) .. ' erased')
elseif step == 'forgotten' then
  redis.call('HDEL', adrs, unpack(ARGV, rest + 1))
elseif step == 'bodies' then
  for _, note in ipairs(redis.call('HVALS', req)) do
    local token = string.match(note, '.*"link":"([^"]+)"')
    if token then redis.call('DEL', base .. 'link:' .. redis.sha1hex(token)) end
  end
  for _, name in ipairs(redis.call('ZRANGE', blobs, 0, -1)) do redis.call('UNLINK', base .. 'blob:' .. session .. ':' .. name) end
  redis.call('UNLINK', snapshot, inbox, box, seen, fact, evt, rec, state, req, blobs, out)
  local last, names = math.min(gen + 499, tonumber(h[4]) + 1), {}
  for number = gen, last do names[#names + 1] = hist .. whole(number) end
  if #names > 0 then redis.call('UNLINK', unpack(names)) end
  if last <= tonumber(h[4]) then return {'done', last + 1} end
elseif step == 'end' then
  redis.call('ZREM', due, session)
  redis.call('ZREM', tidy, session)
  redis.call('DEL', adrs, own)
end
return {'done', -1}

-- list_address: what a session's own list says of one of its addresses. It is said here before it is done at the address, so that the end
-- and the erasure of the session find whatever may lead to it.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own adrs
-- ARGV now key step listed most
-- step = take (it is about to be taken), taken, free (it was another's), drop (it is about to be dropped), dropped, forgotten (its door is empty).
-- Returns {'done', now} | {'has'}: it is the session's already, or nothing is to be dropped | {'full'} | {'ended'} | {'gone'}
--         {'crowded', key, ...}: there are too many of those it had once, and these may be forgotten first.
local DAY_MS = 86400000
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'erasing')
if not h[1] or h[2] then return {'gone'} end
local said = redis.call('HGET', adrs, key)
local state = said and string.sub(said, 1, 1)
local function becomes(letter)
  redis.call('HSET', adrs, key, letter .. whole(ms) .. (said and string.match(said, ' .*') or ' ' .. listed))
  return {'done', whole(ms)}
end
if step == 'take' then
  if h[1] ~= 'live' then return {'ended'} end
  if state == 'o' then return {'has'} end
  if state ~= 't' and state ~= 'd' and redis.call('HLEN', adrs) >= tonumber(most) then
    local all, has, old = redis.call('HGETALL', adrs), 0, {'crowded'}
    for i = 1, #all, 2 do
      local letter, since = string.match(all[i + 1], '^(%a)(%d+) ')
      if letter ~= 'w' then has = has + 1
      elseif tonumber(since) < ms - DAY_MS and #old <= 64 then old[#old + 1] = all[i] end
    end
    if has >= tonumber(most) then return {'full'} end
    if not state and #all / 2 >= 2 * most then return #old > 1 and old or {'full'} end
  end
  return becomes('t')
elseif step == 'taken' then
  if h[1] ~= 'live' then return {'ended'} end
  if state == 't' then return becomes('o') end
elseif step == 'free' then
  if state == 't' then redis.call('HDEL', adrs, key) end
elseif step == 'drop' then
  if not state or state == 'w' then return {'has'} end
  return becomes('d')
elseif step == 'dropped' then
  if state == 'd' or state == 't' and h[1] ~= 'live' then return becomes('w') end
elseif step == 'forgotten' then
  if state == 'w' then redis.call('HDEL', adrs, key) end
end
return {'done', whole(ms)}

-- list_address: what a session's own list says of one of its addresses. It is said here before it is done at the address, so that the end
-- and the erasure of the session find whatever may lead to it.
-- FLAGS allow-oom
-- PARTS clock
-- KEYS own adrs
-- ARGV now key step number listed most
-- step = take (it is about to be taken), taken, free (it is another's, and was never this one's), was (it is another's now), drop (it is about to
--        be dropped), dropped, forgotten (its door is empty).
-- number: what the caller has read there, or the last number the session has given where nothing is there; one that runs late finds
-- another and changes nothing. A take and a drop get the next number, under which they go to the address and come back here.
-- Returns {'done', number} | {'moved'}: look again | {'full'} | {'ended'} | {'gone'}
--         {'crowded', key, ...}: there are too many of those it had once, and these may be forgotten first.
local DAY_MS = 86400000
local ms = clock(now)
local h = redis.call('HMGET', own, 'status', 'erasing', 'adr_n')
if not h[1] or h[2] then return {'gone'} end
local said = redis.call('HGET', adrs, key)
local given = h[3] or '0'
local state, since = '', given
if said then state, since = string.match(said, '^(%a)(%d+) ') end
local function becomes(letter, by)
  if tonumber(by) > tonumber(given) then redis.call('HSET', own, 'adr_n', by) end
  redis.call('HSET', adrs, key, letter .. by .. (said and string.match(said, ' .*') or ' ' .. listed))
  return {'done', by}
end
if (step == 'take' or step == 'taken') and h[1] ~= 'live' then return {'ended'} end
if since ~= number then return {'moved'} end
local following = whole(math.max(ms, since + 1, given + 1))
if step == 'take' then
  if state ~= 't' and state ~= 'd' and redis.call('HLEN', adrs) >= tonumber(most) then
    local all, has, old = redis.call('HGETALL', adrs), 0, {'crowded'}
    for i = 1, #all, 2 do
      local letter, at = string.match(all[i + 1], '^(%a)(%d+) ')
      if letter ~= 'w' then has = has + 1
      elseif tonumber(at) < ms - DAY_MS and #old <= 64 then old[#old + 1] = all[i] end
    end
    if has >= tonumber(most) then return {'full'} end
    if not said and #all / 2 >= 2 * most then return #old > 1 and old or {'full'} end
  end
  return becomes('t', following)
elseif step == 'taken' then
  if state == 't' then return becomes('o', number) end
elseif step == 'free' then
  -- The caller has told the address the number behind this one.
  if state == 't' then
    redis.call('HDEL', adrs, key)
    redis.call('HSET', own, 'adr_n', following)
  end
elseif step == 'was' then
  if state == 't' then return becomes('w', following) end
elseif step == 'drop' then
  if said and state ~= 'w' then return becomes('d', following) end
elseif step == 'dropped' then
  if state == 'd' then return becomes('w', number) end
elseif step == 'forgotten' then
  if state == 'w' then redis.call('HDEL', adrs, key) end
end
return {'done', number}

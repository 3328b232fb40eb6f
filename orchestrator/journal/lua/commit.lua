-- commit: write what has happened, all of it or nothing, and say what becomes of the lease.
-- Before anything: is this commit here already, is the caller ahead of the store, is it still the owner, does it know the last cancel?
-- FLAGS allow-oom
-- PARTS clock ring heads rest shard
-- KEYS own snapshot inbox box due index fact evt hist rec state tidy tail out adrs req blobs
-- ARGV now session token commit seq events gen rows fact_base judged floor used turn work next_timer reads attempt_key progress conditional mode lease_ms grace_ms tidy_ms most text last_row n_facts n_events n_rows n_records n_folded n_consumed n_state n_out n_requests n_links n_blobs hold new_gen retention_ms base template wakes queue broker_db journal_db what
-- floor: what lies above it in the inbox wants to be looked at: `judged`, or 0 where what was judged may be used now.
-- work = 1, 0, or `inbox`: whether something lies above the floor.
-- new_gen: the rows are the first of that generation of the history, and the one before is let go, with the files that only it speaks of; '' for none.
-- mode = keep | chain (release and ring) | park (release, unless a head is above `judged`) | end (as park, and the session is over)
-- An end drops the addresses of its own shard and leaves an entry in the outbox for each that is elsewhere (a zero byte, `drop`, its key, the number of the drop).
-- retention_ms: how long after its end a session is kept, 0 for ever.
-- conditional = 1: refuse the whole if a cancel is above `judged`. The lists follow in the order of their counts; records and state are pairs.
-- Returns {'done', now, n, ring, kept, heads, out} | {'landed', now, n, ring, kept, heads, out} | {'behind', seq, events} | {'superseded'} | {'news', heads} | {'gone'}
local ms = clock(now)
local h = redis.call('HMGET', own, 'last_commit', 'token', 'seq', 'events', 'gen', 'rows', 'cancel_n', 'n', 'deployment', 'fact_base', 'waiting', 'reads', 'status', 'deadline', 'out_at', 'end', 'out_until', 'hold')
if not h[2] then return {'gone'} end
local unjudged = redis.call('ZRANGEBYSCORE', inbox, '(' .. judged, '+inf', 'LIMIT', 0, 1)[1]
local function unread() return unjudged and heads(inbox, box, floor, tonumber(most), h[13] == 'ending' and h[16] or nil) or {} end
local out_at = tonumber(h[15] or 0)
if h[1] == commit then
  local kept = h[2] == token and 1 or 0
  return {'landed', whole(ms), tonumber(h[8]), 0, kept, kept == 1 and unread() or {}, out_at > 0 and redis.call('LLEN', out) or 0}
end
local ahead = tonumber(seq) > tonumber(h[3]) or tonumber(gen) > tonumber(h[5])
  or (h[5] == gen and tonumber(rows) > tonumber(h[6])) or tonumber(events) > tonumber(h[4])
  -- What was judged has been lost: its number will be another's.
  or tonumber(judged) > tonumber(h[8])
if ahead then return {'behind', tonumber(h[3]), tonumber(h[4])} end
if h[2] ~= token or h[3] ~= seq or h[4] ~= events or h[5] ~= gen or h[6] ~= rows then return {'superseded'} end
if conditional == '1' and tonumber(h[7]) > tonumber(judged) then
  return {'news', heads(inbox, box, judged, tonumber(most), h[13] == 'ending' and h[16] or nil)}
end
-- An end of our own making gives way to whatever has come in since.
if mode == 'end' and unjudged then return {'news', unread()} end

local at = rest
local function many(count, write)
  count = tonumber(count)
  -- In pieces: Lua's unpack has a limit.
  for first = at + 1, at + count, 1000 do write(first, math.min(first + 999, at + count)) end
  at = at + count
end
local function push(key) return function(first, last) redis.call('RPUSH', key, unpack(ARGV, first, last)) end end
many(n_facts, push(fact))
many(n_events, push(evt))
if new_gen ~= '' then
  local fresh = string.sub(hist, 1, -1 - #gen) .. new_gen
  redis.call('UNLINK', hist, fresh)
  hist, gen, rows = fresh, new_gen, 0
end
many(n_rows, push(hist))
many(n_records, function(first, last) redis.call('HSET', rec, unpack(ARGV, first, last)) end)
many(n_folded, function(first, last) redis.call('HDEL', rec, unpack(ARGV, first, last)) end)
many(n_consumed, function(first, last)
  redis.call('ZREM', inbox, unpack(ARGV, first, last))
  for i = first, last do redis.call('HDEL', box, ARGV[i], 'b:' .. ARGV[i]) end
end)
many(n_state, function(first, last) redis.call('HSET', state, unpack(ARGV, first, last)) end)
many(n_out, push(out))
many(n_requests, function(first, last) redis.call('HSET', req, unpack(ARGV, first, last)) end)
many(n_links, function(first, last)
  for i = first, last, 2 do redis.call('HSET', base .. 'link:' .. ARGV[i], 'session', session, 'request', ARGV[i + 1]) end
end)
many(n_blobs, function(first, last)
  for i = first, last do redis.call('ZADD', blobs, gen, ARGV[i]) end
end)
if new_gen ~= '' then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', blobs, '-inf', '(' .. new_gen)) do
    redis.call('UNLINK', base .. 'blob:' .. session .. ':' .. name)
    redis.call('ZREM', blobs, name)
  end
end
if tonumber(fact_base) > tonumber(h[10]) then
  redis.call('LTRIM', fact, tonumber(fact_base) - tonumber(h[10]), -1)
end
redis.call('SET', snapshot, text)
-- What is unread may be of a newer version than its owner.
local needs = unjudged and math.max(tonumber(reads), tonumber(h[12])) or reads
local head = redis.call('ZRANGEBYSCORE', inbox, '(' .. floor, '+inf', 'LIMIT', 0, 1)[1]
-- The inbox says it, and not a count: a store that lost its tail may hold more or less than was counted.
if work == 'inbox' then work = head and '1' or '0' end
local events_now = tonumber(events) + tonumber(n_events)
local fields = {'last_commit', commit, 'seq', tonumber(seq) + tonumber(n_facts), 'events', events_now, 'rows', tonumber(rows) + tonumber(n_rows),
  'judged', judged, 'floor', floor, 'turn', turn, 'work', work, 'next_timer', next_timer, 'reads', needs, 'attempt_key', attempt_key, 'fact_base', fact_base}
local function also(name, value) fields[#fields + 1] = name fields[#fields + 1] = value end
local life, timer, deadline, told = h[13], tonumber(next_timer), ends_at(turn, h[14]), n_out ~= '0'
if new_gen ~= '' then also('gen', gen) end
if last_row ~= '' then also('last_row', last_row) end
if hold ~= (h[18] or '') then also('hold', hold) end
-- Some of them may have been lost by the store before they were counted.
if used ~= '0' then also('waiting', math.max(tonumber(h[11]) - tonumber(used), 0)) end
if progress == '1' then also('attempt', 0) also('faults', 0) end
if tidy_ms ~= '0' then redis.call('ZADD', tidy, 'NX', whole(ms + tidy_ms), session) end
local rung, kept = 0, 0
if mode == 'end' then
  life, timer, deadline = 'ended', 0, 0
  also('status', 'ended') also('work', 0) also('next_timer', 0) also('deadline', 0)
  local listed = redis.call('HGETALL', adrs)
  for i = 1, #listed, 2 do
    local key, said = listed[i], listed[i + 1]
    -- An operation stays until its session is erased: who repeats it is told of this session.
    if string.sub(said, 1, 1) ~= 'w' and not string.find(said, '["op"', 1, true) then
      local here = shard_of_address(key) == string.sub(session, -2)
      local number = whole(math.max(ms, string.match(said, '%d+') + 1))
      redis.call('HSET', adrs, key, (here and 'w' or 'd') .. number .. string.match(said, ' .*'))
      if here then
        if redis.call('GET', base .. 'adr:' .. key) == session then redis.call('DEL', base .. 'adr:' .. key) end
      else
        redis.call('RPUSH', out, '\0drop ' .. key .. ' ' .. number)
        told = true
      end
    end
  end
  if retention_ms ~= '0' then
    also('erase_at', whole(ms + retention_ms))
    redis.call('ZADD', tidy, 'LT', whole(ms + retention_ms), session)
  end
end
if told then
  out_at = math.max(ms + grace_ms, tonumber(h[17] or 0))
  also('out_at', whole(out_at))
end
if mode == 'keep' or (mode == 'park' and head) then
  kept = 1
  also('lease', whole(ms + lease_ms))
  rest_until(due, session, owned_look(ms, ms + lease_ms, out_at, tonumber(grace_ms)))
else
  also('token', '') also('left', token) also('lease', 0)
end
redis.call('HSET', own, unpack(fields))
if kept == 0 then
  if mode == 'chain' then
    redis.call('ZADD', due, whole(ms + grace_ms), session)
    rung = ring(own, h[9], session, what, ms)
  else
    local at = next_look(ms, life, timer, deadline, out_at, tonumber(grace_ms))
    if mode == 'park' and work == '1' and timer == 0 then at = math.min(at or ms + 5000, ms + 5000) end
    rest_until(due, session, at)
  end
end
if floor == '0' then redis.call('ZADD', index, whole(ms), session) end
if n_events ~= '0' then redis.call('PUBLISH', tail, session .. ' ' .. events_now) end
return {'done', whole(ms), tonumber(h[8]), rung, kept, kept == 1 and unread() or {}, out_at > 0 and redis.call('LLEN', out) or 0}

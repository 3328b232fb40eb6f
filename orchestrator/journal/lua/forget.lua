-- forget: a page of the keys at a door: those whose first answer names a session that is erased are taken away.
-- FLAGS allow-oom
-- KEYS adm adms
-- ARGV session door cursor most
-- Returns {cursor, forgotten}: the cursor of the next page, '0' after the last.
local page = redis.call('HSCAN', adm, cursor, 'COUNT', most)
local forgotten = 0
for i = 1, #page[2], 2 do
  if string.find(page[2][i + 1], ' ' .. session .. ' ', 1, true) then
    redis.call('HDEL', adm, page[2][i])
    redis.call('ZREM', adms, door .. ':' .. page[2][i])
    forgotten = forgotten + 1
  end
end
return {page[1], forgotten}

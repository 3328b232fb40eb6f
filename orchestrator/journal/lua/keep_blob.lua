-- keep_blob: what was fetched for files of the history stays. It was written before, and goes by itself unless it is kept.
-- FLAGS allow-oom
-- KEYS own
-- ARGV session token base
-- The names follow.
-- Returns {'done', name...}: those that are not there | {'superseded'} | {'gone'}
local held = redis.call('HGET', own, 'token')
if not held then return {'gone'} end
if held ~= token then return {'superseded'} end
local answer = {'done'}
for i = rest + 1, #ARGV do
  local key = base .. 'blob:' .. session .. ':' .. ARGV[i]
  if redis.call('EXISTS', key) == 0 then answer[#answer + 1] = ARGV[i] end
  redis.call('PERSIST', key)
end
return answer

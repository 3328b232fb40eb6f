-- reserve: a channel has heard a key of a webhook whose signature it has checked; the second time it is told so.
-- FLAGS deny-oom
-- PARTS clock door
-- KEYS adm adms
-- ARGV now door key digest base
-- `door` is the channel's own, which no address has; `digest` of what came, not compared if empty.
-- Returns {'new' | 'again' | 'reused', now}
local ms = clock(now)
local first = remembered(key, ms)
if first then
  local other = digest ~= '' and first.digest ~= '' and first.digest ~= digest
  return {other and 'reused' or 'again', whole(ms)}
end
remember(key, digest, {at = ms, outcome = 0, started = 0, state = 'r', delivery = '-', session = '-'})
put_away(ms)
return {'new', whole(ms)}

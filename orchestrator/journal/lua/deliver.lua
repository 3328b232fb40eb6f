-- deliver: admit something into a session's inbox, once; ring if nobody owns the session, else tell its owner.
-- A reset takes effect here: from now on the session takes nothing more, and its owner has only to write its end.
-- FLAGS deny-oom
-- PARTS clock ring blobs admit
-- KEYS own inbox box seen due index news who
-- ARGV now id session kind guard head body digest who_is reads limit grace_ms blobs base template wakes queue broker_db journal_db
-- digest: of what was sent under a caller's own key, or ''. who_is: whom to remember as taking part, or ''.
-- Returns {'accepted' | 'again', now, ring, outcome, n} with outcome 0 taken, 1 cancelling, 2 other_turn, 3 nothing_runs;
--         {'gone'} | {'ended'} | {'full', waiting} | {'reused'}: this id came with another digest |
--         {'blobs', session}: write its files first.
local ms = clock(now)
local at = {own = own, inbox = inbox, box = box, seen = seen, due = due, index = index, news = news, who = who}
local answer = admit(at, session, ms, digest)
if answer[1] ~= 'accepted' and answer[1] ~= 'again' then return answer end
return {answer[1], whole(ms), answer[2], answer[3], answer[4]}

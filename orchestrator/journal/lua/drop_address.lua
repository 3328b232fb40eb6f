-- drop_address: an address leads to a session no more. It is left alone if it leads to another by now.
-- FLAGS allow-oom
-- PARTS clock fence
-- KEYS adr adm adms
-- ARGV now session door grave number
-- Returns {'done'} | {'late'}: it was taken again
if overtaken() then return {'late'} end
if redis.call('GET', adr) == session then redis.call('DEL', adr) end
come_this_far(clock(now))
return {'done'}

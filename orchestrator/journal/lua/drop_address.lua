-- drop_address: an address leads to a session no more. It is left alone if it leads to another by now.
-- FLAGS allow-oom
-- KEYS adr
-- ARGV session
-- Returns {'done'} | {'other'}
if redis.call('GET', adr) ~= session then return {'other'} end
redis.call('DEL', adr)
return {'done'}

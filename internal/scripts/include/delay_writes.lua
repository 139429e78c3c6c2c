-- A script that writes several keys must not stop between two of them. So every kind of write that it needs is tried first in a form
-- that changes nothing: a missing right, a full memory and a key of another type end the script here. No id is empty.
for _, key in ipairs({due_key, running_key, failed_key}) do
  redis.call('ZADD', key, 'XX', 0, '')
  redis.call('ZREM', key, '')
end
for _, key in ipairs({tasks_key, attempts_key, later_key}) do
  redis.call('HDEL', key, '')
end
if record then
  redis.call('SET', record_key, record, 'KEEPTTL')
else
  redis.call('SET', record_key, '', 'XX')
end

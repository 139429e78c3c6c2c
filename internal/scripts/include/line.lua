-- The line of a name has the waiters that are woken one after the other (zset: waiter -> the instant, ms, at which it came). A waiter is
-- the id of its client, a colon and a number, and hears of its turn on the channel of that client: the ms after which to ask, a blank, and
-- the waiter. All readers of a read/write lock are one waiter, 'r', on a channel of that name, because they are let in together. The
-- line is no key of the calls, so that a release succeeds while its slot migrates: what Redis refuses here costs waiters the time until their
-- next poll, and nothing else.
local line = (string.match(channel or '', ':(.*)$') or '') .. ':waiting'

package cogwheeltest

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// stranger is the holder of Steal. It does not renew. As the value of a string lock it is that of another library.
const stranger = "cogwheeltest:1"

// expireLock removes the hold or the holds of a lock of any kind, and returns how many there were.
var expireLock = redis.NewScript(`
local name, timeouts = KEYS[1], ARGV[1]
if redis.call('TYPE', name).ok == 'string' then
  return redis.call('DEL', name)
end
local holds = 0
for _, id in ipairs(redis.call('HKEYS', name)) do
  if id ~= 'mode' then
    redis.call('DEL', timeouts .. ':' .. id .. ':rwlock_timeout:1') -- of a reader
    holds = holds + 1
  end
end
redis.call('DEL', name)
return holds
`)

// stealLock replaces the hold of a lock of any kind. A read/write lock is taken for writing.
var stealLock = redis.NewScript(`
local name, id, lease = KEYS[1], ARGV[1], ARGV[2]
if redis.call('TYPE', name).ok == 'string' then
  redis.call('SET', name, id, 'PX', lease)
  return 1
end
local mode = redis.call('HEXISTS', name, 'mode') == 1
redis.call('DEL', name)
if mode then
  redis.call('HSET', name, 'mode', 'write', id .. ':write', 1)
else
  redis.call('HSET', name, id, 1)
end
redis.call('PEXPIRE', name, lease)
return 1
`)

// returnLock frees a stolen lock and wakes the waiters of all kinds, and of the first in a fair line. A holder of
// another library wakes nobody.
var returnLock = redis.NewScript(`
local name, id = KEYS[1], ARGV[1]
if redis.call('TYPE', name).ok == 'string' then
  return redis.call('GET', name) == id and redis.call('DEL', name) or 0
end
if redis.call('HDEL', name, id, id .. ':write') == 0 then
  return 0
end
redis.call('DEL', name)
redis.call('PUBLISH', ARGV[2], '0')
redis.call('PUBLISH', ARGV[3], '1')
local head = redis.call('LINDEX', KEYS[2], 0)
if head then
  redis.call('PUBLISH', ARGV[2] .. ':' .. head, '0')
end
return 1
`)

// expirePermits ends the leases of permits, of all or of those with the ids, and returns their number. The next
// call for the semaphore finds them expired.
var expirePermits = redis.NewScript(`
local expired = 0
for _, leases in ipairs(KEYS) do
  local ids = ARGV
  if #ids == 0 then
    ids = redis.call('ZRANGE', leases, 0, -1)
  end
  for _, id in ipairs(ids) do
    if redis.call('ZSCORE', leases, id) then
      redis.call('ZADD', leases, 'XX', 1, id)
      expired = expired + 1
    end
  end
end
return expired
`)

// ExpireLock ends the hold of a lock of any kind, with all readers of an RWMutex, as if its lease had run out:
// nothing is announced, and waiters find out at their next query. The holder loses the lock at its next
// renewal, at the latest a third of its lease after the previous one. For a MultiMutex, name one of its parts.
// ExpireLock fails the test if the lock is not held.
func (s *Server) ExpireLock(name string) {
	s.tb.Helper()
	s.mustFind("holds the lock", name, s.run(expireLock, []string{name}, scripts.ReadTimeouts(name)))
}

// Steal gives a lock to a holder that does not exist, whether the lock is free or held. The lease is in whole
// milliseconds, rounded up; a lease below 1 ms counts as 1 ms. A previous holder loses the lock at its next renewal. If
// the lock was free, Steal simulates a process that took it and crashed. An RWMutex that is held is taken for writing.
// A free name becomes a Mutex or a FairMutex. A lock WithStringKey that is held goes to a holder of another library.
//
// giveBack releases the lock and wakes waiters, which a holder of another library does not, unless the lease has ended
// before. It may be called more than once, or never.
func (s *Server) Steal(name string, lease time.Duration) (giveBack func()) {
	s.tb.Helper()
	s.run(stealLock, []string{name}, stranger, max(redisconn.Millis(lease), 1))
	return func() {
		s.run(returnLock, []string{name, scripts.FairLockKeys(name)[1]},
			stranger, scripts.LockChannel(name), scripts.RWChannel(name))
	}
}

// ExpirePermits ends the leases of permits of a Semaphore or FairSemaphore: of all its permits, or of those with the
// ids, as Grant.IDs returns them. Nothing is announced. The permits are free at the next query of the semaphore, and
// the holder loses its grant at its next renewal. ExpirePermits fails the test if it finds none of the permits.
func (s *Server) ExpirePermits(name string, ids ...string) {
	s.tb.Helper()
	raw := make([]any, len(ids))
	for i, id := range ids {
		text, err := hex.DecodeString(id)
		if err != nil {
			s.tb.Errorf("cogwheeltest: %q is not the id of a permit", id)
			return
		}
		raw[i] = text
	}
	leases := []string{scripts.SuffixName(name, "timeout"), scripts.SuffixName(name, "fair:leases")}
	s.mustFind("holds a permit", name, s.run(expirePermits, leases, raw...))
}

// Exhaust takes all available permits of a key, by a call of k. The next request for one permit is denied until the
// limit refills by the server's time. Exhaust fails the test if the server does not answer the call.
func (s *Server) Exhaust(k *ratelimit.Limiter, key string) {
	s.tb.Helper()
	switch r, err := k.AllowUpTo(context.Background(), key, k.Limit().Burst); {
	case err != nil:
		s.tb.Errorf("cogwheeltest: exhaust: %v", err)
	case r.Source == ratelimit.SourceDegraded:
		s.tb.Error("cogwheeltest: exhaust: the policy decided, so no permits were taken")
	}
}

// Flush removes all data, as the restart of a server without persistence does. The server keeps its scripts, so that
// each call of the library stays one command.
func (s *Server) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redis.FlushAll()
}

// mustFind fails the test if there was nothing to end: a fault that hits nothing proves nothing.
func (s *Server) mustFind(what, name string, found int64) {
	s.tb.Helper()
	if found == 0 {
		s.tb.Errorf("cogwheeltest: no process %s: %q", what, name)
	}
}

// run executes a script of the test, which no fault affects.
func (s *Server) run(script *redis.Script, keys []string, args ...any) int64 {
	s.tb.Helper()
	s.mu.Lock()
	s.setTimeLocked()
	s.mu.Unlock()
	n, err := script.Run(context.Background(), s.admin, keys, args...).Int64()
	if err != nil {
		s.tb.Errorf("cogwheeltest: %v", err)
	}
	return n
}

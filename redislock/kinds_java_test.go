package redislock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// The scripts that Redisson documents for its locks.
// KEYS: hash, queue, timeouts, channel, prefix of a reader's timeouts.
// ARGV: lease in ms, holder, wait in ms, now in ms, PUBLISH or SPUBLISH.
// lock returns nil if the lock was acquired. unlock returns nil if the caller does not hold it.
var javaScripts = map[string]struct{ lock, unlock, renew string }{
	"plain": {
		lock: `
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return redis.call('pttl', KEYS[1]) end
redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`,
		unlock: `
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call(ARGV[5], KEYS[4], '0')
return 1`,
		renew: javaRenew,
	},
	"fair": {
		lock: javaSkipExpired + `
local first = redis.call('lindex', KEYS[2], 0)
if redis.call('exists', KEYS[1]) == 0 and (not first or first == ARGV[2]) then
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], ARGV[2])
  for _, other in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do redis.call('zincrby', KEYS[3], -ARGV[3], other) end
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if redis.call('zscore', KEYS[3], ARGV[2]) then return math.max(0, redis.call('pttl', KEYS[1])) end
local last = redis.call('lindex', KEYS[2], -1)
local left = last and redis.call('zscore', KEYS[3], last) - ARGV[4] or redis.call('pttl', KEYS[1])
redis.call('zadd', KEYS[3], left + ARGV[3] + ARGV[4], ARGV[2])
redis.call('rpush', KEYS[2], ARGV[2])
return left`,
		unlock: javaSkipExpired + `
local function wakeFirst()
  local first = redis.call('lindex', KEYS[2], 0)
  if first then redis.call(ARGV[5], KEYS[4] .. ':' .. first, '0') end
  return 1
end
if redis.call('exists', KEYS[1]) == 0 then return wakeFirst() end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
return wakeFirst()`,
		renew: javaRenew,
	},
	"read": {
		lock: `
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 0 then return redis.call('pttl', KEYS[1]) end
if not mode then redis.call('hset', KEYS[1], 'mode', 'read') end
redis.call('set', KEYS[5] .. ':' .. redis.call('hincrby', KEYS[1], ARGV[2], 1), 1, 'px', ARGV[1])
redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
return nil`,
		unlock: `
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then redis.call(ARGV[5], KEYS[4], '0') end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
local count = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if count == 0 then redis.call('hdel', KEYS[1], ARGV[2]) end
redis.call('del', KEYS[5] .. ':' .. count + 1)
if redis.call('hlen', KEYS[1]) > 1 then return 0 end -- the leases of the others are looked at here
redis.call('del', KEYS[1])
redis.call(ARGV[5], KEYS[4], '0')
return 1`,
		renew: `
local count = redis.call('hget', KEYS[1], ARGV[2])
if not count then return 0 end
for n = 1, count do redis.call('pexpire', KEYS[5] .. ':' .. n, ARGV[1]) end
return redis.call('pexpire', KEYS[1], ARGV[1])`,
	},
	"write": {
		lock: `
local mode, own = redis.call('hget', KEYS[1], 'mode'), ARGV[2] .. ':write'
if not mode then
  redis.call('hset', KEYS[1], 'mode', 'write', own, 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if mode == 'read' or redis.call('hexists', KEYS[1], own) == 0 then return redis.call('pttl', KEYS[1]) end
redis.call('hincrby', KEYS[1], own, 1)
redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1])
return nil`,
		unlock: `
local mode, own = redis.call('hget', KEYS[1], 'mode'), ARGV[2] .. ':write'
if not mode then redis.call(ARGV[5], KEYS[4], '1') end
if mode ~= 'write' or redis.call('hexists', KEYS[1], own) == 0 then return nil end
if redis.call('hincrby', KEYS[1], own, -1) > 0 then return 0 end
redis.call('hdel', KEYS[1], own)
if redis.call('hlen', KEYS[1]) > 1 then
  redis.call('hset', KEYS[1], 'mode', 'read')
else
  redis.call('del', KEYS[1])
  redis.call(ARGV[5], KEYS[4], '1')
end
return 1`,
		renew: `
if redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 0 then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[1])`,
	},
}

const (
	javaRenew = `
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[1])`

	// javaSkipExpired removes queue entries whose time has passed.
	javaSkipExpired = `
while true do
  local first = redis.call('lindex', KEYS[2], 0)
  if not first or tonumber(redis.call('zscore', KEYS[3], first)) > tonumber(ARGV[4]) then break end
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], first)
end`
)

// java is a thread of a Java service. It uses its own kind of lock and runs Redisson's scripts.
type java struct {
	t testing.TB
	*lockUnderTest
	kind   string
	id     string // <uuid>:<thread>
	thread int
	verb   string
}

// channel is the channel on which the thread waits for unlocks.
func (j java) channel() string {
	switch j.kind {
	case "fair":
		return scripts.LockChannel(j.name) + ":" + j.id
	case "plain":
		return scripts.LockChannel(j.name)
	}
	return scripts.RWChannel(j.name)
}

func (j java) run(script string, lease time.Duration) (reply any) {
	j.t.Helper()
	readTimeouts := scripts.SuffixName(j.name, j.id) + ":rwlock_timeout"
	keys := append(scripts.FairLockKeys(j.name)[:3:3], scripts.LockChannel(j.name), readTimeouts)
	if j.kind == "read" || j.kind == "write" {
		keys[3] = scripts.RWChannel(j.name)
	}
	args := []any{lease.Milliseconds(), j.id, (5 * time.Minute).Milliseconds(), time.Now().UnixMilli(), j.verb}
	reply, err := j.rdb.Eval(j.t.Context(), script, keys, args...).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(j.t, err)
	}
	return reply
}

func (j java) lock(lease time.Duration) bool { return j.run(javaScripts[j.kind].lock, lease) == nil }
func (j java) unlock() any                   { return j.run(javaScripts[j.kind].unlock, javaLease) }

func (j java) renew(lease time.Duration) bool {
	return j.run(javaScripts[j.kind].renew, lease) == int64(1)
}

const javaLease = time.Minute

func (lut *lockUnderTest) java(t testing.TB, kind string, thread int) java {
	t.Helper()
	return java{t, lut, kind, fmt.Sprintf(
		"8b1c7f0e-3a51-4b6e-9d52-0c6f5a2e7d11:%d", thread,
	), thread, lut.publishCommand(t)}
}

// javaConflicts lists, for each kind, the kinds of Java locks that exclude it.
var javaConflicts = map[string][]string{
	"plain": {"plain"}, "fair": {"fair"}, "read": {"write"}, "write": {"write", "read"},
}

// Guarantees: L47.
func javaUnlockWakesWaiter(t *testing.T, lut *lockUnderTest) {
	waiter := lut.newWaiter(t, lut.mutex)
	for _, kind := range javaConflicts[lut.kind] {
		j := lut.java(t, kind, 52)
		requireWokenWithoutPoll(t, func() time.Duration {
			require.True(t, j.lock(javaLease))
			require.True(t, j.lock(javaLease), "Redisson's lock is reentrant")
			_, err := waiter.TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrLocked)
			waiting := waiter.startWaiting(t, within(t, patience))
			require.Equal(t, int64(0), j.unlock())
			require.True(t, j.renew(javaLease))
			require.False(t, isClosed(waiting.done))
			require.Equal(t, int64(1), j.unlock())
			free := time.Now()
			l := waiting.await(t)
			require.False(t, j.renew(javaLease), "Java does not hold it any more")
			lut.requireHeldOnce(t)
			mustUnlock(t, l)
			return waiting.at.Sub(free)
		})
	}
	lut.requireNoKeys(t)
}

// Guarantees: L47.
func unlockWakesJava(t *testing.T, lut *lockUnderTest) {
	for _, kind := range javaConflicts[lut.kind] {
		j := lut.java(t, kind, 52)
		l := lut.mustLock(t)
		holders := lut.requireHeldOnce(t)
		require.False(t, j.lock(javaLease))
		require.Nil(t, j.unlock(), "Java does not hold it")
		require.False(t, j.renew(javaLease))
		require.Equal(t, holders, lut.requireHeldOnce(t))
		heard := lut.nextMessage(t, j.channel())
		mustUnlock(t, l)
		select {
		case message := <-heard:
			require.Contains(t, []string{"0", "00", "1"}, message, "Redisson reads a number")
		case <-within(t, patience).Done():
			require.Fail(t, "no message on "+j.channel())
		}
		require.True(t, j.lock(javaLease))
		require.Equal(t, int64(1), j.unlock())
	}
	lut.requireNoKeys(t)
}

func acquiresWhenJavaLeaseEnds(t *testing.T, lut *lockUnderTest) {
	for _, kind := range javaConflicts[lut.kind] {
		j := lut.java(t, kind, 52)
		require.True(t, j.lock(200*time.Millisecond))
		l := mustLock(t, lut.mutex(lut.newClient(t)))
		require.Nil(t, j.unlock(), "Java learns that it does not hold it any more")
		lut.requireHeldOnce(t)
		mustUnlock(t, l)
	}
}

func javaAcquiresWhenLeaseEnds(t *testing.T, lut *lockUnderTest) {
	for _, kind := range javaConflicts[lut.kind] {
		j := lut.java(t, kind, 52)
		l := lut.mustLock(t, redislock.WithLease(time.Second), redislock.WithoutRenewal())
		poll(t, func() bool { return j.lock(javaLease) })
		requireOver(t, l)
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.True(t, j.renew(javaLease), "Java's hold is unchanged")
		require.Equal(t, int64(1), j.unlock())
	}
	lut.requireNoKeys(t)
}

func waitsWhileJavaRenews(t *testing.T, lut *lockUnderTest) {
	skipIfShort(t)
	const lease, pass = 3 * time.Second, 700 * time.Millisecond // short: its end is awaited
	w := newWheel(t)
	j := lut.java(t, javaConflicts[lut.kind][len(javaConflicts[lut.kind])-1], 52)
	require.True(t, j.lock(lease))
	last := time.Now()
	waiting := callAsync(func() (*redislock.Lock, error) {
		return lut.mutex(lut.newClient(t)).Lock(within(t, patience))
	})
	for range 5 { // for more than a lease
		require.NoError(t, w.Sleep(t.Context(), pass))
		require.False(t, isClosed(waiting.done))
		last = time.Now()
		require.True(t, j.renew(lease))
	}
	l := waiting.await(t)
	require.GreaterOrEqual(t, waiting.at.Sub(last), lease, "not before a lease after the last renewal")
	mustUnlock(t, l)
}

func TestRWMutex_ReadsWithJava(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		lut := newLockUnderTest(t, dep, "read")
		reader, writer := lut.java(t, "read", 52), lut.java(t, "write", 53)
		rw := lut.newClient(t).RWMutex(lut.name)
		require.True(t, reader.lock(javaLease))
		mine := mustRLock(t, rw)
		_, err := rw.TryLock(t.Context())
		requireLocked(t, err)
		require.False(t, writer.lock(javaLease))
		mustUnlock(t, mine)
		require.Equal(
			t, map[string]string{"mode": "read", reader.id: "1"}, lut.rdb.HGetAll(t.Context(), lut.name).Val(),
		)
		_, err = rw.TryLock(t.Context())
		requireLocked(t, err)
		require.Equal(t, int64(1), reader.unlock())
		lut.requireNoKeys(t)
	})
}

func TestFairMutex_QueuesWithJava(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		lut := newLockUnderTest(t, dep, "fair")
		first, last := lut.java(t, "fair", 1), lut.java(t, "fair", 2)
		held := lut.mustLock(t)
		require.False(t, first.lock(javaLease))
		waiting := lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, patience))
		require.False(t, last.lock(javaLease))
		require.Len(t, fairQueue(t, lut.rdb, lut.name), 3)

		heard := lut.nextMessage(t, first.channel())
		mustUnlock(t, held)
		require.Equal(t, "0", <-heard)
		require.False(t, last.lock(javaLease), "it is not first in the queue")
		require.True(t, first.lock(javaLease))
		require.False(t, isClosed(waiting.done))
		require.Equal(t, int64(1), first.unlock())
		l := waiting.await(t)
		heard = lut.nextMessage(t, last.channel())
		mustUnlock(t, l)
		require.Equal(t, "0", <-heard)
		require.True(t, last.lock(javaLease))
		_, err := lut.mutex(lut.newClient(t)).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.Equal(t, int64(1), last.unlock())
		lut.requireNoKeys(t)
	})
}

// Older services use channels that are not sharded, in a cluster too.
// Guarantees: L47.
func TestCluster_WithoutShardedChannels(t *testing.T) {
	t.Parallel()
	for kind := range javaScripts {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dep := sharedCluster(t)
			lut := newLockUnderTest(t, dep, kind)
			j := lut.java(t, javaConflicts[kind][0], 52)
			j.verb = "PUBLISH"
			rdb := dep.connect(t)
			count := &commandCounter{n: make(map[string]int)}
			rdb.AddHook(count)
			c := newClient(t, rdb, redislock.WithShardedChannels(false))
			requireWokenWithoutPoll(t, func() time.Duration {
				require.True(t, j.lock(javaLease))
				waiting := waiter{lut.mutex(c), count}.startWaiting(t, within(t, patience))
				require.Equal(t, int64(1), j.unlock())
				free := time.Now()
				l := waiting.await(t)
				sub := dep.rdb.Subscribe(t.Context(), j.channel())
				defer sub.Close()
				_, err := sub.Receive(t.Context())
				require.NoError(t, err)
				require.False(t, j.lock(javaLease))
				mustUnlock(t, l)
				m, err := sub.ReceiveMessage(within(t, patience))
				require.NoError(t, err)
				require.Contains(t, []string{"0", "00", "1"}, m.Payload)
				return waiting.at.Sub(free)
			})
		})
	}
}

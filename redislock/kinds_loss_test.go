package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func isRenewed(t *testing.T, s *subject) {
	const lease = 1200 * time.Millisecond
	c, w := s.client(t), newWheel(t)
	m := s.of(c, redislock.WithLease(lease))
	ctx := redislock.WithOwner(t.Context(), &redislock.Owner{})
	outer, err := m.Lock(ctx)
	require.NoError(t, err)
	inner, err := m.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, inner, outer) // whose end must not end the renewals of the next
	l := mustTry(t, m)
	holders, rival := s.requireHeld(t), s.rivalOf(s.client(t))
	for start := time.Now(); time.Since(start) < 5*lease/2; {
		_, err := rival.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.NoError(t, w.Sleep(t.Context(), 20*time.Millisecond))
	}
	require.NoError(t, l.Err())
	require.Equal(t, holders, s.requireHeld(t))
	mustUnlock(t, l)
	s.requireNoTrace(t)
}

func mendsTheExpiry(t *testing.T, s *subject) {
	const lease, shorter = 3 * time.Second, 2500 * time.Millisecond
	l := s.take(t, redislock.WithLease(lease))
	lasts := func(more time.Duration) {
		t.Helper()
		poll(t, func() bool {
			return !slices.ContainsFunc(s.parts, func(name string) bool { return s.rdb.PTTL(t.Context(), name).Val() <= more })
		})
	}
	for _, name := range s.parts {
		require.True(t, s.rdb.PExpire(t.Context(), name, shorter).Val())
	}
	lasts(shorter)
	if s.kind != "read" { // whom one without expiry may have joined
		for _, name := range s.parts {
			require.True(t, s.rdb.Persist(t.Context(), name).Val())
		}
		lasts(0)
	}
	require.NoError(t, l.Err())
	mustUnlock(t, l)
	s.requireNoTrace(t)
}

// requireLost waits for a loss that a renewal finds, before the lease is over.
func requireLost(t *testing.T, l *redislock.Lock, since time.Time, lease time.Duration) {
	t.Helper()
	<-l.Done()
	require.Less(t, time.Since(since), lease, "told by the next renewal")
	require.False(t, l.Valid())
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
}

func tellsOfARemovedKey(t *testing.T, s *subject) {
	const lease = 2 * time.Second
	l := s.take(t, redislock.WithLease(lease))
	ctx := l.Context(t.Context())
	s.vanish(t)
	removed := time.Now()
	next := mustTry(t, s.rivalOf(s.client(t)))
	holders := s.requireHeld(t)
	requireLost(t, l, removed, lease)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
	require.Equal(t, holders, s.requireHeld(t), "the next one's hold is left alone")
	mustUnlock(t, next)
	poll(t, func() bool { return len(s.trace(t)) == 0 })
}

func tellsOfAnOverwrittenKey(t *testing.T, s *subject) {
	const lease = 2 * time.Second
	l, name := s.take(t, redislock.WithLease(lease)), s.parts[len(s.parts)-1]
	require.NoError(t, s.rdb.Set(t.Context(), name, "mine", 0).Err())
	requireLost(t, l, time.Now(), lease)
	poll(t, func() bool { return slices.Equal(s.trace(t), []string{name}) })
	require.Equal(t, "mine", s.rdb.Get(t.Context(), name).Val())
}

func tellsOfForce(t *testing.T, s *subject) {
	const lease = 2 * time.Second
	l, c := s.take(t, redislock.WithLease(lease)), s.client(t)
	if s.kind == "read" || s.kind == "write" {
		other := map[string]string{"read": "write", "write": "read"}[s.kind]
		freed, err := mutexOf(c, other, s.name).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.False(t, freed, "each side frees its own only")
	}
	forced := time.Now()
	for _, held := range []bool{true, false} {
		freed, err := s.mutexOf(c).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.Equal(t, held, freed)
	}
	requireLost(t, l, forced, lease)
	poll(t, func() bool { return len(s.trace(t)) == 0 })
}

// faultyClient is a process whose connections pass a FaultDialer. The scripts are known, so that one call does the work.
func (s *subject) faultyClient(t *testing.T) (*redislock.Client, *redistest.FaultDialer) {
	t.Helper()
	d := &redistest.FaultDialer{}
	c := newClient(t, s.connect(t, func(o *redis.UniversalOptions) { o.Dialer, o.ReadTimeout = d.Dial, 200*time.Millisecond }))
	mustUnlock(t, mustTry(t, s.of(c)))
	s.requireNoTrace(t)
	return c, d
}

// One Lock is one hold, and one Unlock frees it, whatever was executed twice.
func lostReplies(t *testing.T, s *subject) {
	for _, loss := range []redistest.Loss{redistest.Swallow, redistest.Cut} {
		c, d := s.faultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, loss)
		l := mustTry(t, s.of(c))
		<-lost
		s.requireHeld(t)
		lost = d.LoseReply("EVALSHA", 1, loss)
		mustUnlock(t, l)
		<-lost
		s.requireNoTrace(t)

		// What is released once more, in case a copy comes late, must not touch the next holder.
		next := s.take(t)
		holders := s.requireHeld(t)
		require.NoError(t, c.Close(within(t, patience))) // sends what is pending
		require.Equal(t, holders, s.requireHeld(t))
		mustUnlock(t, next)
		s.requireNoTrace(t)
	}
}

func givenUpOnTheWire(t *testing.T, s *subject) {
	for _, lock := range []func(locker, context.Context) (*redislock.Lock, error){locker.TryLock, locker.Lock} {
		c, d := s.faultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, redistest.Swallow)
		ctx, cancel := context.WithCancel(t.Context())
		gone := begin(func() (*redislock.Lock, error) { return lock(s.of(c, redislock.WithLease(time.Minute)), ctx) })
		<-lost
		require.NotEmpty(t, s.trace(t), "the server did it, and nobody knows")
		start := time.Now()
		cancel()
		<-gone.done
		require.ErrorIs(t, gone.err, context.Canceled)
		require.NotErrorIs(t, gone.err, redislock.ErrLocked)
		other := mustWait(t, s.rivalOf(s.client(t)))
		require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
		mustUnlock(t, other)
		require.NoError(t, c.Close(within(t, patience)))
		s.requireNoTrace(t)
	}
}

// What happens to a whole deployment, one mishap after the other.
func TestKinds_ThroughMishaps(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() []*redistest.Server{
		"a single server": func() []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
		"a cluster": func() []*redistest.Server { // whose replicas do not take over from a master that restarts
			return redistest.StartCluster(t, "--cluster-node-timeout", "6000").Nodes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := start()
			p := newPlace(t, 3, servers...)
			t.Run("killed subscriptions are restored, and those who wait look", func(t *testing.T) { subscriptionsKilled(t, p) })
			t.Run("scripts are flushed all the time", func(t *testing.T) { scriptsFlushed(t, p) })
			t.Run("FLUSHALL", func(t *testing.T) {
				dataLost(t, p, func() {
					p.onMasters(t, func(ctx context.Context, rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() })
				})
			})
			t.Run("a restart without data", func(t *testing.T) {
				dataLost(t, p, func() {
					for _, s := range servers[:(len(servers)+1)/2] {
						s.Restart(t)
					}
				})
			})
		})
	}
}

func subscriptionsKilled(t *testing.T, p *place) {
	var subjects []*subject
	var contenders []contender
	for _, kind := range kinds {
		s := newSubject(t, p, kind)
		subjects, contenders = append(subjects, s), append(contenders, s.contender(t, s.of))
	}
	requireWoken(t, func() (took time.Duration) {
		var waiting []*begun
		for i, s := range subjects {
			s.holdRaw(t, 0)
			waiting = append(waiting, contenders[i].start(t, within(t, patience)))
		}
		for _, s := range subjects {
			s.vanish(t) // and nobody publishes
		}
		killed := time.Now()
		for _, node := range p.nodes {
			require.NoError(t, node.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
		}
		for _, b := range waiting {
			mustUnlock(t, b.wait(t))
			took = max(took, b.at.Sub(killed))
		}
		return took
	})
}

func scriptsFlushed(t *testing.T, p *place) {
	stop, flushed, w := make(chan struct{}), make(chan int, 1), newWheel(t)
	var held []*redislock.Lock
	for _, kind := range kinds {
		held = append(held, newSubject(t, p, kind).take(t, redislock.WithLease(1800*time.Millisecond)))
	}
	go func() {
		for n := 0; ; n++ {
			for _, node := range p.nodes {
				_ = node.ScriptFlush(context.Background()).Err()
			}
			_ = w.Sleep(context.Background(), time.Millisecond) // others want the processor too
			if isClosed(stop) {
				flushed <- n
				return
			}
		}
	}()
	c := newClient(t, p.rdb)
	for start := time.Now(); time.Since(start) < 2500*time.Millisecond; {
		for _, kind := range kinds {
			require.NoError(t, newSubject(t, p, kind).of(c).Do(t.Context(), func(context.Context) error { return nil }))
		}
	}
	close(stop)
	require.Greater(t, <-flushed, 10)
	for _, l := range held {
		require.NoError(t, l.Err(), "renewals survive it too")
	}
	mustUnlock(t, held...)
}

// dataLost has holders learn that everything is gone, and then take their locks again.
func dataLost(t *testing.T, p *place, lose func()) {
	const lease = 2 * time.Second
	type hold struct {
		*subject
		m    locker
		lock *redislock.Lock
	}
	var holds []*hold
	for _, kind := range kinds {
		for range 3 { // on several masters
			h := &hold{subject: newSubject(t, p, kind)}
			opts := []redislock.LockOption{redislock.WithLease(lease)}
			if slices.Contains(fenceable, kind) {
				opts = append(opts, redislock.WithFencing())
			}
			h.m = h.of(h.client(t), opts...)
			h.lock = mustTry(t, h.m)
			holds = append(holds, h)
		}
	}
	lose()
	var again []*redislock.Lock
	for _, h := range holds {
		lost := h.lock
		<-lost.Done()
		require.ErrorIs(t, lost.Err(), redislock.ErrLost)
		poll(t, func() (taken bool) { // once it serves again
			l, err := h.m.TryLock(t.Context())
			h.lock = l
			return err == nil
		})
		again = append(again, h.lock)
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		h.requireHeld(t)
		if slices.Contains(fenceable, h.kind) {
			require.Greater(t, h.lock.Token(), lost.Token())
		}
	}
	keptFor(t, lease/2, again...) // they are renewed again
	for _, h := range holds {
		mustUnlock(t, h.lock)
		h.requireNoTrace(t)
	}
}

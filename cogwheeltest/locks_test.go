package cogwheeltest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// A lock of any kind does on the embedded server what it does on a real one.
func TestLocks(t *testing.T) {
	t.Parallel()
	behaviours := map[string]func(*testing.T, *world){
		"a reader shares, a writer excludes":         readersAndWriters,
		"a writer becomes a reader":                  downgrades,
		"a MultiMutex takes all names or none":       multi,
		"a Quorum needs a majority":                  quorum,
		"tokens rise":                                tokens,
		"an Owner enters again":                      owner,
		"waiters of one process hand the lock over":  handsOver,
		"a FairMutex serves in the order of arrival": fairOrder,
		"metadata is shown, and a hold can be freed": metadata,
		"WithMaxHold ends a hold":                    maxHold,
		"WithMinHold runs a short job once":          minHold,
		"replicas that are missing are an error":     replicas,
		"the wrong kind of key is ErrWrongKind":      wrongKind,
		"LockFunc waits without a goroutine":         lockFunc,
	}
	for kind, of := range kinds {
		behaviours[kind+" is renewed for as long as it is held"] = func(t *testing.T, w *world) { renewed(t, w, of) }
		behaviours[kind+" excludes the other process, and wakes it"] = func(t *testing.T, w *world) { excludes(t, w, of) }
		behaviours[kind+" ends with its lease without renewal"] = func(t *testing.T, w *world) { leaseEnds(t, w, of) }
		behaviours[kind+" can be extended"] = func(t *testing.T, w *world) { extended(t, w, of) }
		behaviours[kind+" is lost when its lease expires"] = func(t *testing.T, w *world) { expires(t, w, of) }
		behaviours[kind+" is lost when it is stolen"] = func(t *testing.T, w *world) { stolen(t, w, of, kind == stringKey) }
		behaviours[kind+" goes to the next when its holder crashes"] = func(t *testing.T, w *world) { crash(t, w, of) }
		behaviours[kind+" survives lost replies"] = func(t *testing.T, w *world) { lostReplies(t, w, of) }
	}
	inBubbles(t, behaviours)
}

// locker is any kind of lock.
type locker interface {
	Lock(ctx context.Context) (*redislock.Lock, error)
	TryLock(ctx context.Context) (*redislock.Lock, error)
}

// stringKey is the kind whose stolen locks are those of another library.
const stringKey = "a Mutex with a string key"

// kinds make the lock "n" of a process.
var kinds = map[string]func(*redislock.Client, ...redislock.LockOption) locker{
	"a Mutex": func(c *redislock.Client, opts ...redislock.LockOption) locker { return c.Mutex("n", opts...) },
	"a FairMutex": func(c *redislock.Client, opts ...redislock.LockOption) locker {
		return c.FairMutex("n", opts...)
	},
	"a writer": func(c *redislock.Client, opts ...redislock.LockOption) locker {
		return c.RWMutex("n", opts...).Writer()
	},
	stringKey: func(c *redislock.Client, opts ...redislock.LockOption) locker {
		return c.Mutex("n", append(opts, redislock.WithStringKey())...)
	},
	"a MultiMutex": func(c *redislock.Client, opts ...redislock.LockOption) locker {
		return c.MultiMutex([]string{"m", "n"}, opts...)
	},
}

type kindOf = func(*redislock.Client, ...redislock.LockOption) locker

func mustLock(t *testing.T, w *world, m locker) *redislock.Lock {
	t.Helper()
	l, err := m.Lock(w.ctx)
	require.NoError(t, err)
	return l
}

// waitFor begins to wait for a lock, which is then unlocked.
func waitFor(w *world, m locker) <-chan error {
	return calling(func() error {
		l, err := m.Lock(w.ctx)
		if err != nil {
			return err
		}
		return l.Unlock(w.ctx)
	})
}

func renewed(t *testing.T, w *world, of kindOf) {
	l := mustLock(t, w, of(w.locks[0]))
	for range 60 {
		w.Advance(time.Minute)
		require.NoError(t, l.Err())
		_, err := of(w.locks[1]).TryLock(w.ctx)
		require.ErrorIs(t, err, redislock.ErrLocked)
	}
	require.NoError(t, l.Unlock(w.ctx))
	require.ErrorIs(t, l.Unlock(w.ctx), redislock.ErrNotHeld)
}

func excludes(t *testing.T, w *world, of kindOf) {
	l := mustLock(t, w, of(w.locks[0]))
	next := waitFor(w, of(w.locks[1]))
	requireWaiting(t, next)
	began := w.Now()
	require.NoError(t, l.Unlock(w.ctx))
	requireDone(t, next)
	require.Equal(t, began, w.Now(), "by the message, not by a poll")
}

func leaseEnds(t *testing.T, w *world, of kindOf) {
	l := mustLock(t, w, of(w.locks[0], redislock.WithoutRenewal(), redislock.WithLease(time.Minute)))
	w.Advance(58 * time.Second)
	require.NoError(t, l.Err())
	w.Advance(1500 * time.Millisecond)
	require.ErrorIs(t, l.Err(), redislock.ErrLost, "before Redis gives it to another")
	_, err := of(w.locks[1]).TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	w.Advance(500 * time.Millisecond)
	mustLock(t, w, of(w.locks[1]))
}

func extended(t *testing.T, w *world, of kindOf) {
	l := mustLock(t, w, of(w.locks[0], redislock.WithoutRenewal()))
	require.NoError(t, l.Extend(w.ctx, time.Hour))
	w.Advance(50 * time.Minute)
	require.True(t, l.Valid())
	require.NoError(t, l.Unlock(w.ctx))
	mustLock(t, w, of(w.locks[1]))
}

func expires(t *testing.T, w *world, of kindOf) {
	l := mustLock(t, w, of(w.locks[0]))
	w.ExpireLock("n")
	w.Advance(redislock.DefaultLease / 2)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(w.ctx), redislock.ErrLost)
}

func stolen(t *testing.T, w *world, of kindOf, silent bool) {
	l := mustLock(t, w, of(w.locks[0]))
	giveBack := w.Steal("n", time.Hour)
	w.Advance(redislock.DefaultLease / 2)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	next := waitFor(w, of(w.locks[1]))
	w.Advance(time.Minute)
	requireWaiting(t, next)
	began := w.Now()
	giveBack()
	if silent {
		w.Advance(100 * time.Millisecond)
	}
	requireDone(t, next)
	if !silent {
		require.Equal(t, began, w.Now(), "by the message, not by a poll")
	}
	giveBack() // does nothing now
}

func crash(t *testing.T, w *world, of kindOf) {
	crashed := w.NewClient()
	locks, err := redislock.New(crashed, redislock.WithWheel(w.Wheel()))
	require.NoError(t, err)
	l := mustLock(t, w, of(locks))
	w.Isolate(crashed)
	next := waitFor(w, of(w.locks[1]))
	w.Advance(redislock.DefaultLease / 2)
	requireWaiting(t, next)
	w.Advance(redislock.DefaultLease)
	require.ErrorIs(t, l.Err(), redislock.ErrLost, "if the process lives, it knows")
	requireDone(t, next)
	w.Rejoin(crashed)
	w.Advance(time.Minute)
	require.NoError(t, locks.Close(context.Background()))
}

func lostReplies(t *testing.T, w *world, of kindOf) {
	w.DropReplies(1, "n")
	l := mustLock(t, w, of(w.locks[0]))
	require.Zero(t, w.PendingFaults())
	w.DropReplies(1, "n")
	w.Advance(redislock.DefaultLease / 2)
	require.Zero(t, w.PendingFaults())
	require.NoError(t, l.Err())
	w.DropReplies(1, "n")
	require.NoError(t, l.Unlock(w.ctx))
	require.Zero(t, w.PendingFaults())
	mustLock(t, w, of(w.locks[1]))
}

func readersAndWriters(t *testing.T, w *world) {
	rw := [2]*redislock.RWMutex{w.locks[0].RWMutex("n"), w.locks[1].RWMutex("n")}
	first, second := mustLock(t, w, rw[0].Reader()), mustLock(t, w, rw[1].Reader())
	writer := waitFor(w, rw[1])
	w.Advance(time.Hour)
	require.NoError(t, first.Err())
	require.NoError(t, second.Err())
	require.NoError(t, first.Unlock(w.ctx))
	requireWaiting(t, writer)
	require.NoError(t, second.Unlock(w.ctx))
	requireDone(t, writer)
	first = mustLock(t, w, rw[0].Reader())
	w.ExpireLock("n")
	w.Advance(redislock.DefaultLease / 2)
	require.ErrorIs(t, first.Err(), redislock.ErrLost)
}

func downgrades(t *testing.T, w *world) {
	rw := w.locks[0].RWMutex("n")
	l, err := rw.Downgrade(w.ctx, mustLock(t, w, rw))
	require.NoError(t, err)
	mustLock(t, w, w.locks[1].RWMutex("n").Reader())
	w.Advance(time.Hour)
	require.NoError(t, l.Err())
}

func multi(t *testing.T, w *world) {
	taken := mustLock(t, w, w.locks[1].Mutex("b"))
	m := w.locks[0].MultiMutex([]string{"a", "b"})
	_, err := m.TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.NoError(t, mustLock(t, w, w.locks[1].Mutex("a")).Unlock(w.ctx), "none is left")
	require.NoError(t, taken.Unlock(w.ctx))
	l := mustLock(t, w, m)
	_, err = w.locks[1].Mutex("a").TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.NoError(t, l.Unlock(w.ctx))
}

func quorum(t *testing.T, w *world) {
	servers := []*world{w, newWorld(t), newWorld(t)}
	var rdbs []redis.UniversalClient
	for _, s := range servers {
		rdbs = append(rdbs, s.Client())
	}
	q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(w.Wheel()))
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close(context.Background())) }()
	servers[0].Stop()
	l := mustLock(t, w, q.Mutex("n"))
	w.Advance(time.Hour)
	require.NoError(t, l.Err())
	servers[1].Stop()
	w.Advance(time.Minute)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	_, err = q.Mutex("n").TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrNoQuorum)
	servers[0].Restart()
	servers[1].Restart()
	w.Advance(time.Minute)
	mustLock(t, w, q.Mutex("n"))
}

func tokens(t *testing.T, w *world) {
	var last int64
	for i := range 6 {
		l := mustLock(t, w, w.locks[i%2].Mutex("n", redislock.WithFencing()))
		require.Greater(t, l.Token(), last)
		last = l.Token()
		require.NoError(t, l.Unlock(w.ctx))
		if i == 3 {
			w.Flush() // a server that has lost its data
			w.Advance(time.Second)
		}
	}
}

func owner(t *testing.T, w *world) {
	ctx := redislock.ContextWithOwner(w.ctx, new(redislock.Owner))
	m := w.locks[0].Mutex("n")
	outer, err := m.Lock(ctx)
	require.NoError(t, err)
	inner, err := m.Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, inner.Unlock(ctx))
	_, err = w.locks[1].Mutex("n").TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.NoError(t, outer.Unlock(ctx))
	mustLock(t, w, w.locks[1].Mutex("n"))
}

func handsOver(t *testing.T, w *world) {
	m := w.locks[0].Mutex("n", redislock.WithFencing())
	l := mustLock(t, w, m)
	next := []<-chan error{waitFor(w, m), waitFor(w, m), waitFor(w, m)}
	w.Advance(time.Minute)
	require.NoError(t, l.Unlock(w.ctx))
	for _, done := range next {
		requireDone(t, done)
	}
}

func fairOrder(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].FairMutex("n"))
	var order []int
	for i := range 6 {
		w.locks[i%2].FairMutex("n").LockFunc(w.ctx, func(l *redislock.Lock, err error) {
			if err == nil {
				order = append(order, i) // one at a time, as the lock says
				err = l.Unlock(context.Background())
			}
			require.NoError(t, err)
		})
		w.Advance(time.Second)
	}
	w.Advance(time.Minute)
	require.NoError(t, l.Unlock(w.ctx))
	w.Advance(time.Minute)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, order)
}

func metadata(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n", redislock.WithMetadata("host 7")))
	m := w.locks[1].Mutex("n")
	s, err := m.State(w.ctx)
	require.NoError(t, err)
	require.Equal(t, "host 7", s.Holders[0].Metadata)
	require.Equal(t, redislock.DefaultLease, s.TTL)
	freed, err := m.ForceUnlockHolder(w.ctx, s.Holders[0].ID)
	require.NoError(t, err)
	require.True(t, freed)
	w.Advance(redislock.DefaultLease / 2)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
}

func maxHold(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n", redislock.WithMaxHold(time.Hour)))
	w.Advance(time.Hour)
	require.ErrorIs(t, l.Err(), redislock.ErrMaxHold)
}

// Two processes whose clocks differ by 50 ms start a job that takes a millisecond, every minute.
func minHold(t *testing.T, w *world) {
	const period, differ, rounds = time.Minute, 50 * time.Millisecond, 5
	runs := func(opts ...redislock.LockOption) (n int) {
		for range rounds {
			for _, locks := range w.locks {
				l, err := locks.Mutex("job", opts...).TryLock(w.ctx)
				if err == nil {
					n++
					time.Sleep(time.Millisecond)
					require.NoError(t, l.Unlock(w.ctx))
				} else {
					require.ErrorIs(t, err, redislock.ErrLocked)
				}
				time.Sleep(differ)
			}
			time.Sleep(period - 2*differ)
		}
		return n
	}
	require.Equal(t, 2*rounds, runs(), "control: without a minimum, it runs in each process")
	require.Equal(t, rounds, runs(redislock.WithMinHold(10*time.Second)))

	// A waiter gets the lock when the minimum ends, not before and at most 10 ms later.
	began := time.Now()
	l := mustLock(t, w, w.locks[0].Mutex("job", redislock.WithMinHold(10*time.Second)))
	waiting := waitFor(w, w.locks[1].Mutex("job"))
	requireWaiting(t, waiting)
	require.NoError(t, l.Unlock(w.ctx))
	require.NoError(t, <-waiting)
	require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
	require.LessOrEqual(t, time.Since(began), 10*time.Second+10*time.Millisecond)
}

func replicas(t *testing.T, w *world) {
	_, err := w.locks[0].Mutex("n", redislock.WithReplicas(1, time.Second)).TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrReplicas)
}

func wrongKind(t *testing.T, w *world) {
	require.NoError(t, w.Client().RPush(w.ctx, "n", "x").Err())
	for kind, of := range kinds {
		_, err := of(w.locks[0]).TryLock(w.ctx)
		require.ErrorIs(t, err, redislock.ErrWrongKind, kind)
	}
	mustLock(t, w, w.locks[0].Mutex("plain"))
	_, err := w.locks[0].RWMutex("plain").TryLock(w.ctx)
	require.ErrorIs(t, err, redislock.ErrWrongKind)
}

func lockFunc(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n"))
	got := make(chan error, 1)
	w.locks[1].Mutex("n").LockFunc(w.ctx, func(_ *redislock.Lock, err error) { got <- err })
	w.Advance(time.Minute)
	requireWaiting(t, got)
	require.NoError(t, l.Unlock(w.ctx))
	requireDone(t, got)
}

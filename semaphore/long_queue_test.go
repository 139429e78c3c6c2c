package semaphore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// This file has the tests of one process in which many callers wait for one semaphore.

// askedFor is a hook that keeps how long the acquiring calls of a client are.
type askedFor struct {
	mu   sync.Mutex
	args []int
}

func (a *askedFor) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *askedFor) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		a.note(cmd)
		return next(ctx, cmd)
	}
}

func (a *askedFor) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			a.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (a *askedFor) note(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) > 1 && (args[1] == scripts.SemAcquire.SHA() || args[1] == scripts.PermitAcquire.SHA()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.args = append(a.args, len(args))
	}
}

// since returns the lengths of the calls since the last call of since.
func (a *askedFor) since() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	args := a.args
	a.args = nil
	return args
}

// While many wait, a process asks only for about as many permits as it was granted last, so that a grant costs the same
// however many wait. If all of them are granted, it asks for all the others at once. Calls that it does not ask for count
// as contended too.
func TestLongQueue_AsksForWhatItMayGet(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		const waiting = 80
		rdb, name, asked := redistest.Shared(t).Client(t), redistest.Name(t), new(askedFor)
		k.newWoken(t, rdb, name).setPermits(t, 1)
		user := redistest.Shared(t).Client(t)
		user.AddHook(asked)
		c := newClient(t, user, semaphore.WithPoll(time.Hour))
		s := k.newAny(c, name)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		var all []chan releaseFunc
		for range waiting {
			got, _ := startWaiting(t, s, 1)
			all = append(all, got)
		}
		got := granted(all)
		k.awaitLine(t, rdb, name, 1)
		asked.since()
		for range 20 {
			require.NoError(t, release(t.Context()))
			release = <-got
		}
		calls := asked.since()
		require.Less(t, slices.Max(calls[1:]), 70, "words of the longest of %v", calls)
		require.EqualValues(t, waiting, c.Stats().Contended)

		asked.since()
		switch s := s.(type) {
		case countingPermits:
			require.NoError(t, s.AddPermits(t.Context(), waiting))
		case leasedPermits:
			require.NoError(t, s.AddPermits(t.Context(), waiting))
		default:
			require.Fail(t, fmt.Sprintf("%T", s))
		}
		releases := []releaseFunc{release}
		for range waiting - 20 {
			releases = append(releases, <-got)
		}
		require.LessOrEqual(t, len(asked.since()), 8, "a few, and then all the others")
		for _, release := range releases {
			require.NoError(t, release(t.Context()))
		}
	})
}

// The reply to a release says that a waiter of the same process is to ask. If that reply is lost, it asks too.
func TestLongQueue_TheReplyToAReleaseIsLost(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for how, loss := range losses {
			for _, retries := range []int{-1, 3} {
				t.Run(fmt.Sprintf("%s, %d retries", how, retries), func(t *testing.T) {
					t.Parallel()
					d := &redistest.FaultDialer{Timeout: 300 * time.Millisecond}
					rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
						o.Dialer = d.Dial
						o.ReadTimeout, o.MaxRetries = time.Second, retries
					})
					for _, s := range scripts.All() {
						require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
					}
					s := k.newWoken(t, rdb, redistest.Name(t))
					s.setPermits(t, 1)
					release, err := s.acquire(t.Context(), 1)
					require.NoError(t, err)
					got, _ := startWaiting(t, s, 1)
					k.awaitLine(t, rdb, s.Name(), 1)
					script := scripts.PermitRelease
					if k.name == countingKind.name {
						script = scripts.SemRelease
					}
					lost := d.LoseReply(script.SHA(), 1, loss)
					_ = release(t.Context()) // may be unconfirmed
					<-lost
					select {
					case release = <-got:
						require.NoError(t, release(t.Context()))
					case <-time.After(testTimeout):
						require.Fail(t, "the waiter did not ask")
					}
				})
			}
		}
	})
}

// Callers of two processes come and go all the time. A release wakes the one that waits, whatever calls of its process are
// in flight. Nobody waits for a poll.
func TestLongQueue_NobodyIsForgotten(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		k.newWoken(t, rdb, name).setPermits(t, 2)
		var all sync.WaitGroup
		enough := time.Now().Add(5 * time.Second)
		for process := range uint64(2) {
			s := k.newWoken(t, redistest.Shared(t).Client(t), name)
			for caller := range uint64(4) {
				rng := rand.New(rand.NewPCG(process, caller))
				all.Go(func() {
					for time.Now().Before(enough) {
						ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
						release, err := s.acquire(ctx, 1)
						cancel()
						if err != nil {
							t.Error(err)
							return
						}
						busyWait(time.Duration(rng.IntN(100)) * time.Microsecond)
						if err := release(t.Context()); err != nil {
							t.Error(err)
							return
						}
						busyWait(time.Duration(rng.IntN(500)) * time.Microsecond)
					}
				})
			}
		}
		all.Wait()
	})
}

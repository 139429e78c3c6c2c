package semaphore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// requireTotal checks the free and held permits of a semaphore.
func requireTotal(t testing.TB, l *semaphore.Semaphore, free, held int64) {
	t.Helper()
	s := stateOf(t, l)
	require.Equal(t, []int64{free, held}, []int64{s.Free, s.Held}, "free and held")
}

// Guarantees: S26.
func TestPermits_SetsTheNumberIfNoneIsSet(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		acquiring := map[string]func(*semaphore.Semaphore, int64) (*semaphore.Grant, error){
			"Acquire":    func(l *semaphore.Semaphore, n int64) (*semaphore.Grant, error) { return l.Acquire(t.Context(), n) },
			"TryAcquire": func(l *semaphore.Semaphore, n int64) (*semaphore.Grant, error) { return l.TryAcquire(t.Context(), n) },
			"AcquireFunc": func(l *semaphore.Semaphore, n int64) (g *semaphore.Grant, err error) {
				done := make(chan struct{})
				l.AcquireFunc(t.Context(), n, func(granted *semaphore.Grant, failed error) {
					g, err = granted, failed
					close(done)
				})
				<-done
				return g, err
			},
		}
		for call, acquire := range acquiring {
			t.Run(call, func(t *testing.T) {
				c, rdb, name := newSharedClient(t)
				l := k.newSemaphore(c, name, 5)
				g, err := acquire(l, 2)
				require.NoError(t, err)
				requireTotal(t, l, 3, 2)
				require.EqualValues(t, -1, rdb.PTTL(t.Context(), k.permitsKey(name)).Val(), "the number does not expire")
				_, err = acquire(l, 6)
				require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
				require.NoError(t, g.Release(t.Context()))
				requireTotal(t, l, 5, 0)
			})
		}
		t.Run("a request for too many fails", func(t *testing.T) {
			c, _, name := newSharedClient(t)
			_, err := k.newSemaphore(c, name, 2).Acquire(within(t, testTimeout), 3)
			require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
		})
		t.Run("a request for none does not ask Redis", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			g := mustAcquire(t, k.newSemaphore(c, name, 2), 0)
			require.NoError(t, g.Release(t.Context()))
			require.Empty(t, keysOf(t, rdb, name))
		})
		t.Run("without the option the number is not set", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			_, err := k.newSemaphore(c, name, 0).Acquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNotSet)
			require.Empty(t, keysOf(t, rdb, name))
		})
		t.Run("with an idle expiry the number expires", func(t *testing.T) {
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			l := k.newSemaphore(newClient(t, rdb, semaphore.WithIdleExpiry(time.Hour)), name, 2)
			g := mustAcquire(t, l, 1)
			for key, left := range lifetimes(t, rdb, name) {
				require.Greater(t, left, 50*time.Minute, key)
			}
			require.NoError(t, g.Release(t.Context()))
		})
		t.Run("one number of free permits is set, whichever of many is first", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			other := newClient(t, rdb)
			redistest.Each(t, 20, func(i int) error {
				client := c
				if i%2 == 0 {
					client = other
				}
				g, err := k.newSemaphore(client, name, 3).Acquire(within(t, testTimeout), 1)
				if err == nil {
					err = g.Release(context.Background())
				}
				return err
			})
			requireTotal(t, k.newSemaphore(c, name, 0), 3, 0)
		})
	})
}

func TestPermits_OfAnotherKindIsRefused(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		other := c.FairSemaphore(name, 2)
		if k.name == "fair" {
			other = c.Semaphore(name, 2)
		}
		l := k.newSemaphore(c, name, 2)
		require.NoError(t, mustAcquire(t, l, 1).Release(t.Context()))
		before := keysOf(t, rdb, name)
		_, err := other.Acquire(within(t, testTimeout), 1)
		require.ErrorIs(t, err, semaphore.ErrWrongKind)
		require.ElementsMatch(t, before, keysOf(t, rdb, name))
		requireTotal(t, l, 2, 0)
	})
}

// warnings counts the warnings of a log about another number of permits.
func warnings(log *bytes.Buffer) int {
	return strings.Count(log.String(), "the declared one does not change it")
}

// Guarantees: S26.
func TestPermits_TheFirstNumberCountsAndAnotherIsLoggedOnce(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		var firstLog, secondLog bytes.Buffer
		logTo := func(b *bytes.Buffer) semaphore.Option {
			return semaphore.WithLogger(slog.New(slog.NewTextHandler(b, nil)))
		}
		first, second := newClient(t, rdb, logTo(&firstLog)), newClient(t, rdb, logTo(&secondLog))
		l := k.newSemaphore(first, name, 5)
		held := mustAcquire(t, l, 2)
		require.Zero(t, warnings(&firstLog))

		for range 3 { // the request is granted: the number is compared all the same
			g := mustAcquire(t, k.newSemaphore(second, name, 7), 1)
			requireTotal(t, l, 2, 3)
			require.NoError(t, g.Release(t.Context()))
		}
		require.Equal(t, 1, warnings(&secondLog), secondLog.String())
		require.Contains(t, secondLog.String(), fmt.Sprintf("name=%s permits=5 declared=7", name))

		_, err := k.newSemaphore(second, name+":x", 7).TryAcquire(t.Context(), 7)
		require.NoError(t, err)
		_, err = k.newSemaphore(second, name+":x", 6).TryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		require.Equal(t, 2, warnings(&secondLog), "another name")
		for range 2 {
			_, err = k.newSemaphore(second, name+":x", 0).TryAcquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNoPermits)
		}
		require.Equal(t, 2, warnings(&secondLog), "a semaphore without the option names no number")

		require.NoError(t, l.SetPermits(t.Context(), 6))
		require.NoError(t, mustAcquire(t, l, 1).Release(t.Context()))
		require.Equal(t, 1, warnings(&firstLog), "the number was changed")
		require.NoError(t, held.Release(t.Context()))
		requireTotal(t, l, 6, 0)
	})
}

// A pipeline of single permits shares a script, which compares the numbers too.
func TestPermits_InASharedScript(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize = 1 }), redistest.Name(t)
	var log bytes.Buffer
	c := newClient(t, rdb, semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	const names = 200
	for declared := range int64(2) {
		redistest.Each(t, names, func(i int) error {
			l := c.Semaphore(fmt.Sprint(name, ":", i), 3+declared)
			_, err := l.Acquire(within(t, testTimeout), 1)
			return err
		})
		require.Equal(t, int(declared)*names, warnings(&log))
	}
	for i := range names {
		requireTotal(t, c.Semaphore(fmt.Sprint(name, ":", i), 0), 1, 2)
	}
}

// Guarantees: S18, S26.
func TestPermits_AfterDeleteAndALossOfData(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		t.Run("a waiter sets the number of a deleted semaphore", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			l := k.newSemaphore(c, name, 1)
			held := mustAcquire(t, l, 1)
			waiting := startCall(func() error {
				_, err := k.newSemaphore(newClient(t, rdb, semaphore.WithPoll(time.Hour)), name, 1).
					Acquire(within(t, testTimeout), 1)
				return err
			})
			k.awaitWaiting(t, rdb, name, 1)
			_, err := l.Delete(t.Context())
			require.NoError(t, err)
			require.NoError(t, waiting.wait(t))
			require.ErrorIs(t, held.Release(t.Context()), semaphore.ErrLost)
			requireTotal(t, l, 0, 1)
		})
		t.Run("permits that are held stay held if only the number is lost", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			l := k.newSemaphore(c, name, 3)
			held := mustAcquire(t, l, 2)
			require.NoError(t, rdb.Del(t.Context(), k.permitsKey(name)).Err())
			_, err := l.TryAcquire(t.Context(), 2)
			require.ErrorIs(t, err, semaphore.ErrNoPermits)
			g := mustAcquire(t, l, 1)
			requireTotal(t, l, 0, 3)
			require.NoError(t, errors.Join(held.Release(t.Context()), g.Release(t.Context())))
			requireTotal(t, l, 3, 0)
		})
	})
}

// An acquisition whose reply was lost is sent again. The number is set once, and the permits are taken once.
// Guarantees: S26.
func TestPermits_RepliesLost(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		for how, loss := range losses {
			t.Run(how, func(t *testing.T) {
				c, d, _ := newFaultyClient(t, redistest.Shared(t), 3)
				l := k.newSemaphore(c, redistest.Name(t), 5)
				lost := d.LoseReply(scripts.PermitAcquire.SHA(), 1, loss)
				g := mustAcquire(t, l, 2)
				<-lost
				requireTotal(t, l, 3, 2)
				require.NoError(t, g.Release(t.Context()))
				requireTotal(t, l, 5, 0)
			})
		}
	})
}

func TestPermits_Range(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	for _, n := range []int64{-1, semaphore.MaxPermits + 1} {
		err := c.Semaphore(name, n).Err()
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		require.ErrorContains(t, err, "permits")
	}
	for _, n := range []int64{0, 1, semaphore.MaxPermits} {
		require.NoError(t, c.Semaphore(name, n).Err())
	}
}

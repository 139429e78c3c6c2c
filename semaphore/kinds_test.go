package semaphore_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// anySemaphore is what the three kinds of semaphores have in common.
type anySemaphore interface {
	Available(context.Context) (int64, error)
	TrySetPermits(ctx context.Context, n int64) (bool, error)
	setPermits(t testing.TB, n int64)
	acquire(ctx context.Context, n int64) (releaseFunc, error)
	tryAcquire(ctx context.Context, n int64) (releaseFunc, error)
	acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) (cancel func())
}

// releaseFunc releases what was acquired.
type releaseFunc func(context.Context) error

// countingSemaphore is a CountingSemaphore as anySemaphore.
type countingSemaphore struct{ *semaphore.CountingSemaphore }

func (s countingSemaphore) setPermits(t testing.TB, n int64) {
	mustSetPermits(t, s.CountingSemaphore, n)
}

func (s countingSemaphore) releaseOf(n int64, err error) (releaseFunc, error) {
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return s.Release(ctx, n) }, nil
}

func (s countingSemaphore) acquire(ctx context.Context, n int64) (releaseFunc, error) {
	return s.releaseOf(n, s.Acquire(ctx, n))
}

func (s countingSemaphore) tryAcquire(ctx context.Context, n int64) (releaseFunc, error) {
	return s.releaseOf(n, s.TryAcquire(ctx, n))
}

func (s countingSemaphore) acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
	return s.AcquireFunc(ctx, n, func(err error) { f(s.releaseOf(n, err)) })
}

// leasedSemaphore is a Leased as anySemaphore.
type leasedSemaphore struct{ *semaphore.Leased }

func (l leasedSemaphore) setPermits(t testing.TB, n int64) { mustSetPermits(t, l.Leased, n) }

func (l leasedSemaphore) releaseOf(g *semaphore.Grant, err error) (releaseFunc, error) {
	if err != nil {
		return nil, err
	}
	return g.Release, nil
}

func (l leasedSemaphore) acquire(ctx context.Context, n int64) (releaseFunc, error) {
	return l.releaseOf(l.Acquire(ctx, n))
}

func (l leasedSemaphore) tryAcquire(ctx context.Context, n int64) (releaseFunc, error) {
	return l.releaseOf(l.TryAcquire(ctx, n))
}

func (l leasedSemaphore) acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
	return l.AcquireFunc(ctx, n, func(g *semaphore.Grant, err error) { f(l.releaseOf(g, err)) })
}

// kind is one of the three kinds of semaphores.
type kind struct {
	name         string
	newSemaphore func(c *semaphore.Client, name string) anySemaphore
	channel      func(name string) string // a pattern: a fair semaphore has a channel per process
}

var (
	countingKind = kind{
		name: "counting",
		newSemaphore: func(c *semaphore.Client, name string) anySemaphore {
			return countingSemaphore{c.CountingSemaphore(name)}
		},
		channel: scripts.SemChannel,
	}
	unfairKind = kind{
		name:         "leased",
		newSemaphore: func(c *semaphore.Client, name string) anySemaphore { return leasedSemaphore{c.Leased(name)} },
		channel:      scripts.SemChannel,
	}
	fairKind = kind{
		name:         "fair",
		newSemaphore: func(c *semaphore.Client, name string) anySemaphore { return leasedSemaphore{c.FairLeased(name)} },
		channel:      func(name string) string { return scripts.PrefixName("cogwheel_fair", name) + ":*" },
	}

	kinds = []kind{countingKind, unfairKind, fairKind}
)

// forEachKind runs a test on every kind.
func forEachKind(t *testing.T, f func(t *testing.T, k kind)) {
	t.Helper()
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}

// leasedKind is one of the two kinds with leases.
type leasedKind struct {
	kind
	newLeased func(c *semaphore.Client, name string, opts ...semaphore.LeasedOption) *semaphore.Leased
}

// forEachLeasedKind runs a test on both kinds with leases.
func forEachLeasedKind(t *testing.T, f func(t *testing.T, leased leasedKind)) {
	t.Helper()
	t.Parallel()
	for _, k := range []leasedKind{{unfairKind, (*semaphore.Client).Leased}, {fairKind, (*semaphore.Client).FairLeased}} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}

// awaitWaiting returns when n clients are subscribed to the channels of the semaphore.
func (k kind) awaitWaiting(t testing.TB, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	poll(t, func() bool {
		channels, err := rdb.PubSubChannels(t.Context(), k.channel(name)).Result()
		require.NoError(t, err)
		listening := 0
		subs, err := rdb.PubSubNumSub(t.Context(), channels...).Result()
		require.NoError(t, err)
		for _, clients := range subs {
			listening += int(clients)
		}
		return listening == n
	})
}

// awaitQueued returns when n requests are queued in Redis. Only a fair semaphore queues those behind the
// first of a process there; for the others awaitQueued returns at once.
func (k kind) awaitQueued(t testing.TB, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	if k.name == "fair" {
		poll(t, func() bool { return rdb.ZCard(t.Context(), scripts.SuffixName(name, "fair:queue")).Val() == n })
	}
}

// leasesKey returns the key in which Redis keeps the leases.
func (k leasedKind) leasesKey(name string) string {
	if k.name == "fair" {
		return scripts.SuffixName(name, "fair:leases")
	}
	return leasesKey(name)
}

// permitsKey returns the key in which Redis keeps the number of free permits.
func (k kind) permitsKey(name string) string {
	if k.name == "fair" {
		return scripts.SuffixName(name, "fair:permits")
	}
	return name
}

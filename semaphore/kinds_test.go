package semaphore_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// anySemaphore is what the three kinds of semaphores have in common.
type anySemaphore interface {
	Name() string
	Available(context.Context) (int64, error)
	TrySetPermits(ctx context.Context, n int64) (bool, error)
	setPermits(t testing.TB, n int64)
	acquire(ctx context.Context, n int64) (releaseFunc, error)
	tryAcquire(ctx context.Context, n int64) (releaseFunc, error)
	acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) (cancel func())
}

// releaseFunc releases what was acquired.
type releaseFunc func(context.Context) error

// countingPermits is a CountingSemaphore as anySemaphore.
type countingPermits struct{ *semaphore.CountingSemaphore }

func (s countingPermits) setPermits(t testing.TB, n int64) {
	mustSetPermits(t, s.CountingSemaphore, n)
}

func (s countingPermits) releaseOf(n int64, err error) (releaseFunc, error) {
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return s.Release(ctx, n) }, nil
}

func (s countingPermits) acquire(ctx context.Context, n int64) (releaseFunc, error) {
	return s.releaseOf(n, s.Acquire(ctx, n))
}

func (s countingPermits) tryAcquire(ctx context.Context, n int64) (releaseFunc, error) {
	return s.releaseOf(n, s.TryAcquire(ctx, n))
}

func (s countingPermits) acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
	return s.AcquireFunc(ctx, n, func(err error) { f(s.releaseOf(n, err)) })
}

// leasedPermits is a Semaphore as anySemaphore.
type leasedPermits struct{ *semaphore.Semaphore }

func (l leasedPermits) setPermits(t testing.TB, n int64) { mustSetPermits(t, l.Semaphore, n) }

func (l leasedPermits) releaseOf(g *semaphore.Grant, err error) (releaseFunc, error) {
	if err != nil {
		return nil, err
	}
	return g.Release, nil
}

func (l leasedPermits) acquire(ctx context.Context, n int64) (releaseFunc, error) {
	return l.releaseOf(l.Acquire(ctx, n))
}

func (l leasedPermits) tryAcquire(ctx context.Context, n int64) (releaseFunc, error) {
	return l.releaseOf(l.TryAcquire(ctx, n))
}

func (l leasedPermits) acquireFunc(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
	return l.AcquireFunc(ctx, n, func(g *semaphore.Grant, err error) { f(l.releaseOf(g, err)) })
}

// kind is one of the three kinds of semaphores.
type kind struct {
	name    string
	newAny  func(c *semaphore.Client, name string) anySemaphore
	channel string // without the name
	keys    string // what stands before the parts of the keys of its line
}

// messages returns the pattern of the channels on which processes are woken.
func (k kind) messages(name string) string { return scripts.PrefixName(k.channel, name) + ":*" }

// key returns the key of a part of its line.
func (k kind) key(name, part string) string { return scripts.SuffixName(name, k.keys+part) }

// lineOf returns the waiters in the line, the first one first.
func (k kind) lineOf(t testing.TB, rdb redis.UniversalClient, name string) []string {
	t.Helper()
	return redistest.LineOf(t, rdb, k.key(name, "waiting"))
}

// awaitLine waits until n waiters are in the line.
func (k kind) awaitLine(t testing.TB, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	redistest.AwaitLine(t, rdb, k.key(name, "waiting"), n)
}

// awaitWaited waits until all in the line have waited for longer than releases let others overtake them.
func (k kind) awaitWaited(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	redistest.AwaitWaited(t, rdb, k.key(name, "waiting"), redistest.Overtaken)
}

var (
	countingKind = kind{
		name: "counting",
		newAny: func(c *semaphore.Client, name string) anySemaphore {
			return countingPermits{c.CountingSemaphore(name)}
		},
		channel: "redisson_sc",
	}
	unfairKind = kind{
		name:    "semaphore",
		newAny:  func(c *semaphore.Client, name string) anySemaphore { return leasedPermits{c.Semaphore(name, 0)} },
		channel: "redisson_sc",
	}
	fairKind = kind{
		name:    "fair",
		newAny:  func(c *semaphore.Client, name string) anySemaphore { return leasedPermits{c.FairSemaphore(name, 0)} },
		channel: "cogwheel_fair", keys: "fair:",
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
	newSemaphore func(c *semaphore.Client, name string, permits int64, opts ...semaphore.SemaphoreOption) *semaphore.Semaphore
}

// forEachLeasedKind runs a test on both kinds with leases.
func forEachLeasedKind(t *testing.T, f func(t *testing.T, k leasedKind)) {
	t.Helper()
	t.Parallel()
	for _, k := range []leasedKind{{unfairKind, (*semaphore.Client).Semaphore}, {fairKind, (*semaphore.Client).FairSemaphore}} {
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
		channels, err := rdb.PubSubChannels(t.Context(), k.messages(name)).Result()
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

package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A server that hung executes, as soon as it goes on, what callers had sent and given up by then.
// Guarantees: L7.
func TestLock_WhatAHangLeftBehindIsReleasedHoweverLongItWas(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 500*time.Millisecond, -1 })
	const lease = 15 * time.Second
	w := newWheel(t, wheel.WithClock(clocktest.Fast(10)))
	c := newClient(t, rdb, redislock.WithPoll(time.Second), redislock.WithWheel(w))
	m := c.Mutex(name, redislock.WithLease(lease))
	writeHold(t, rdb, name, patience)
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(t.Context()) })
	awaitSubscription(t, rdb, name)
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Second).Err()) // it ends during the pause
	server.Pause()
	require.NoError(t, w.Sleep(t.Context(), 30*time.Second)) // for longer than a copy may be late: 3 s of the server
	server.Resume()
	// The server grants the first attempt that it reads, which the waiter has given up long ago.
	require.Less(t, redistest.Running(t, func() {
		_ = waiting.await(t).Unlock(t.Context()) // a lease is a second and a half: it may have ended
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	}), lease-3*time.Second, "it is not there until its lease ends")
}

package redislock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A part that is lost in the instant in which the whole is made of the parts must not hide those behind it from Unlock: their
// watchdogs would keep them for ever.
func TestMultiMutex_PartLostWhileJoined(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	parts := make([]*redislock.Lock, 500)
	for i := range parts {
		parts[i] = mustLock(t, c.Mutex(fmt.Sprintf("%s:%d", name, i)))
	}
	require.NoError(t, rdb.Del(t.Context(), parts[0].Name()).Err())
	require.ErrorIs(t, parts[0].Extend(t.Context(), time.Minute), redislock.ErrLost)

	whole := c.Join(parts...)
	<-whole.Done()
	require.ErrorIs(t, whole.Unlock(t.Context()), redislock.ErrLost)
	for _, part := range parts {
		require.Error(t, part.Err(), "%s is still held", part.Name())
		poll(t, func() bool { return rdb.Exists(t.Context(), part.Name()).Val() == 0 })
	}
}

// A wheel that was full for a moment delays the releases of that moment, and no others.
func TestClient_ReleasesAfterAFullWheel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, name := server.Client(t), redistest.Name(t)
	w, err := wheel.New(wheel.WithMaxPendingTimeouts(64))
	require.NoError(t, err)
	dialer := &redistest.FaultDialer{Timeout: 300 * time.Millisecond}
	c, err := redislock.New(server.Client(t, func(o *redis.Options) {
		o.Dialer, o.MaxRetries, o.ReadTimeout = dialer.Dial, -1, 300*time.Millisecond
	}), redislock.WithWheel(w))
	require.NoError(t, err)
	defer func() {
		require.NoError(t, c.Close(context.Background()))
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}()
	var full []wheel.Timer
	fill := func() {
		for {
			timer, err := w.AfterFunc(time.Hour, func() {})
			if err != nil {
				return
			}
			full = append(full, timer)
		}
	}
	first, second := mustLock(t, c.Mutex(name+":1", redislock.WithLease(time.Hour))), mustLock(t, c.Mutex(name+":2", redislock.WithLease(time.Hour)))
	fill()
	dialer.Set(redistest.BlackholeUp)
	done := make(chan error, 1)
	go func() { done <- first.Unlock(t.Context()) }()
	<-first.Done()
	fill() // the entry of its lease is free now
	require.Error(t, <-done)
	for _, timer := range full {
		timer.Stop()
	}
	require.Error(t, second.Unlock(t.Context()))
	dialer.Set(redistest.Pass)
	for i := 1; i <= 2; i++ {
		poll(t, func() bool { return rdb.Exists(t.Context(), fmt.Sprintf("%s:%d", name, i)).Val() == 0 })
	}
}

// What one who has left was told is not told to one who comes later, when it may be true no more.
func TestMutex_LeavesNoRefusalBehind(t *testing.T) {
	t.Parallel()
	holder, _, name := onSharedServer(t)
	held := mustLock(t, holder.Mutex(name))
	dialer, told := &redistest.FaultDialer{}, make(chan struct{}, 1)
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial })
	c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{Contended: func(redislock.Event) { told <- struct{}{} }}))
	require.NoError(t, rdb.Ping(t.Context()).Err()) // connected
	dialer.Delay(0, 200*time.Millisecond)
	_, err := c.Mutex(name).Lock(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	<-told // after he had gone
	mustUnlock(t, held)
	dialer.Delay(0, 0)
	dialer.Set(redistest.BlackholeUp)
	_, err = c.Mutex(name).Lock(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	dialer.Set(redistest.Pass)
}

// The time that is told is that of the hold, not until the next look.
func TestMutex_TellsTheHoldOfItsOwnProcess(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	held := mustLock(t, c.Mutex(name))
	defer mustUnlock(t, held)
	_, err := c.Mutex(name).Lock(within(t, 50*time.Millisecond))
	var locked *redislock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Greater(t, locked.TTL, 20*time.Second)
	require.LessOrEqual(t, locked.TTL, redislock.DefaultLease)
}

// A hold for longer than a time.Duration can tell is a long one.
func TestMutex_HeldForAges(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "java:1", 1).Err())
	for _, ms := range []int64{1 << 44, 1 << 50, 1 << 53} {
		require.NoError(t, rdb.Do(t.Context(), "PEXPIRE", name, ms).Err())
		_, err := c.Mutex(name).TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Greater(t, locked.TTL, 250*365*24*time.Hour)
	}
}

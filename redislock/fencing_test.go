package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// fencedWrite is a store that remembers the highest token and refuses lower ones.
const fencedWrite = `
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// write writes to the store as a holder with that token; an unfenced store takes everything.
func write(ctx context.Context, rdb *redis.Client, name string, fenced bool, token int64, value string) (accepted bool, err error) {
	if !fenced {
		return true, rdb.Set(ctx, name+":value", value, 0).Err()
	}
	n, err := rdb.Eval(ctx, fencedWrite, []string{name + ":value", name + ":seen"}, token, value).Int()
	return n == 1, err
}

func TestLock_Token(t *testing.T) {
	t.Parallel()

	t.Run("is zero without fencing, and no counter is kept", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		l := mustLock(t, c.Mutex(name))
		require.Zero(t, l.Token())
		require.NoError(t, l.Unlock(t.Context()))
		requireFree(t, rdb, scripts.LockFence(name))
		require.Zero(t, (*redislock.Lock)(nil).Token())
	})

	rises := map[string]func(t *testing.T, server *redistest.Server, rdb *redis.Client, l *redislock.Lock){
		"after an unlock": func(t *testing.T, _ *redistest.Server, _ *redis.Client, l *redislock.Lock) {
			require.NoError(t, l.Unlock(t.Context()))
		},
		"after the lease ran out": func(t *testing.T, _ *redistest.Server, rdb *redis.Client, l *redislock.Lock) {
			require.NoError(t, rdb.PExpire(t.Context(), l.Name(), time.Millisecond).Err())
		},
		"after a forced unlock": func(t *testing.T, _ *redistest.Server, rdb *redis.Client, l *redislock.Lock) {
			freed, err := newClient(t, rdb).Mutex(l.Name()).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
		},
		"after FLUSHALL": func(t *testing.T, _ *redistest.Server, rdb *redis.Client, _ *redislock.Lock) {
			require.NoError(t, rdb.FlushAll(t.Context()).Err())
		},
		"after a restart without data": func(t *testing.T, server *redistest.Server, _ *redis.Client, _ *redislock.Lock) {
			server.Kill()
			server.Restart(t)
		},
		"when a service in Java has raised the counter": func(t *testing.T, _ *redistest.Server, rdb *redis.Client, l *redislock.Lock) {
			require.NoError(t, l.Unlock(t.Context()))
			require.NoError(t, rdb.IncrBy(t.Context(), scripts.LockFence(l.Name()), 1_000_000_000).Err())
		},
	}
	for how, free := range rises {
		t.Run("rises "+how, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			name := redistest.Name(t)
			first := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithFencing()))
			require.Positive(t, first.Token())
			counter := rdb.Get(t.Context(), scripts.LockFence(name)).Val()
			free(t, server, rdb, first)
			next := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithFencing()))
			require.Greater(t, next.Token(), first.Token(), "the counter was %s", counter)
		})
	}

	t.Run("rises when the lock is handed on within a process, and over all that follow", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		m := c.Mutex(name, redislock.WithFencing())
		other := newClient(t, rdb).Mutex(name, redislock.WithFencing())
		var tokens []int64 // guarded by the lock
		var running sync.WaitGroup
		for i := range 40 {
			running.Go(func() {
				m := m
				if i%4 == 0 {
					m = other
				}
				l, err := m.Lock(within(t, patience))
				if err != nil {
					t.Error(err)
					return
				}
				tokens = append(tokens, l.Token())
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		require.Len(t, tokens, 40)
		require.True(t, slices.IsSorted(tokens), "%v", tokens)
		require.Len(t, slices.Compact(tokens), 40)
	})

	t.Run("a fence that holds no number is ErrWrongKind, and nothing is held", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		require.NoError(t, rdb.Set(t.Context(), scripts.LockFence(name), "x", 0).Err())
		_, err := c.Mutex(name, redislock.WithFencing()).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind)
		requireFree(t, rdb, name)
	})
}

// A holder that is frozen for longer than its lease wakes up and writes before it has looked at anything.
func TestLock_FrozenHolderWritesTooLate(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t)
	for _, fenced := range []bool{true, false} {
		what := "a fenced store refuses it"
		if !fenced {
			what = "a store without a fence takes it (control)"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			role := roleFrozen
			if fenced {
				role = roleFrozenFenced
			}
			holder := startChild(t, role, server.Addr(), name)
			require.Equal(t, "held", holder.line(t))
			freeze(t, holder.cmd)

			next := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithFencing()))
			accepted, err := write(t.Context(), rdb, name, fenced, next.Token(), "of the new holder")
			require.NoError(t, err)
			require.True(t, accepted)

			_, err = fmt.Fprintln(holder.stdin, "write")
			require.NoError(t, err)
			thaw(t, holder.cmd)
			require.Equal(t, fmt.Sprintf("valid=false accepted=%v", !fenced), holder.line(t))
			want := "of the new holder"
			if !fenced {
				want = "of the frozen holder"
			}
			require.Equal(t, want, rdb.Get(t.Context(), name+":value").Val())
			require.NoError(t, next.Unlock(t.Context()))
		})
	}
}

package answers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// failures is a hook of a redis client that notes the calls for which the login was refused.
type failures struct {
	mu    sync.Mutex
	calls []string
}

func (f *failures) note(cmds ...redis.Cmder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cmd := range cmds {
		f.calls = append(f.calls, fmt.Sprint(cmd.Args()...))
	}
}

// known reports whether two calls that contain each of the words have failed: the second begins when the process has taken
// note of the first.
func (f *failures) known(words ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(words, func(word string) bool {
		failed := 0
		for _, call := range f.calls {
			if strings.Contains(call, word) {
				failed++
			}
		}
		return failed < 2
	})
}

func (*failures) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failures) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if redisconn.IsLoginRefused(err) {
			f.note(cmd)
		}
		return err
	}
}

func (f *failures) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if redisconn.IsLoginRefused(err) {
			f.note(cmds...)
		}
		return err
	}
}

// While a password is rotated that the process does not know yet, what has begun goes on: waits, releases, renewals and
// Serve. What begins is an error, under every policy of a limiter.
// Guarantees: L11, L38, S11, D20.
func TestLogin_APasswordIsRotated(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	for what, before := range map[string]string{"the process learns the other password": "old", "the first password is taken back": ""} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			admin := server.Client(t)
			ctx := t.Context()
			require.NoError(t, admin.ConfigSet(ctx, "requirepass", before).Err())
			var known, current atomic.Pointer[string]
			known.Store(&before)
			current.Store(&before)
			client := func(password *atomic.Pointer[string]) *redis.Client {
				return server.Client(t, func(o *redis.Options) {
					o.CredentialsProvider = func() (string, string) { return "", *password.Load() }
				})
			}
			rdb, fails := client(&known), &failures{}
			rdb.AddHook(fails)
			p, other := newProcess(t, redistest.Wheel(t), rdb), newProcess(t, redistest.Wheel(t), client(&current))
			s := begin(t, p, other)
			kept, err := p.locks.Mutex(s.name+":kept", redislock.WithLease(redistest.SafeLease)).Lock(ctx)
			require.NoError(t, err)
			require.NoError(t, kept.Extend(ctx, 2*redistest.Patience)) // renewals go on as before
			impatient := make(chan error, 1)
			go func() {
				_, err := p.locks.Mutex(s.name+":Mutex", redislock.WithLease(time.Second)).Lock(ctx)
				impatient <- err
			}()
			redistest.Poll(t, func() bool { return p.locks.Stats().Contended == int64(len(mutexes)+2) })

			s.waitBehind()
			after := "new"
			require.NoError(t, admin.ConfigSet(ctx, "requirepass", after).Err())
			current.Store(&after)
			require.NoError(t, admin.Do(ctx, "CLIENT", "KILL", "SKIPME", "yes").Err())
			redistest.Poll(t, func() bool { return rdb.Ping(ctx).Err() != nil }) // the old connections are gone
			s.requireReleasesFail(true)
			s.requireDecides(false)
			s.requireRefused()
			require.NoError(t, s.other.delays.Queue(s.name+":tasks").Schedule(ctx, "short", 0, nil))
			redistest.Poll(t, func() bool {
				return fails.known(append(s.asked(), "awaited:{"+s.name)...) && p.locks.Stats().Renewal.Failures > 0
			})
			s.requireRefusedBehind()
			require.True(t, redisconn.IsLoginRefused(<-impatient), "a lease has passed: it is no rotation")
			s.requireGoesOn()
			require.Error(t, p.locks.Stats().Err)
			require.Error(t, p.semaphores.Stats().Err)
			require.Error(t, p.delays.Stats().Err)

			if before == "" {
				require.NoError(t, admin.ConfigSet(ctx, "requirepass", "").Err())
			} else {
				known.Store(&after)
			}
			s.free()
			s.requireSucceeds()
			renewed := p.locks.Stats().Renewal.Renewed // of kept alone, as no other lock is held
			redistest.Poll(t, func() bool { return p.locks.Stats().Renewal.Renewed > renewed })
			require.NoError(t, kept.Unlock(ctx))
		})
	}
}

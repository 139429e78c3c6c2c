package semaphore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// logText collects log records. It is safe for concurrent use.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), word)
}

// ends calls f on a goroutine and returns when that has ended, however it does.
func ends(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-within(t, testTimeout).Done():
		require.FailNow(t, "the call has not ended")
	}
}

// Every hook panics, or ends its goroutine. Other callers do not notice, and nothing is left in Redis.
func TestHooks_ThatDoNotReturnHarmNoOtherCaller(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for what, fail := range map[string]func(){
			"panic":               func() { panic("of a hook") },
			"end their goroutine": runtime.Goexit,
		} {
			t.Run("although they "+what, func(t *testing.T) {
				t.Parallel()
				var called [3]atomic.Int64
				hook := func(i int) func(semaphore.Event) {
					return func(semaphore.Event) {
						called[i].Add(1)
						fail()
					}
				}
				var log logText
				rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
				c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)), semaphore.WithPoll(50*time.Millisecond),
					semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
					semaphore.WithHooks(semaphore.Hooks{
						Acquired: hook(0), Contended: hook(1), Failed: hook(2), Renewed: hook(2), Lost: hook(2), Released: hook(2),
					}))
				require.NoError(t, err)
				watcher := k.newAny(newClient(t, redistest.Shared(t).Client(t)), name)
				watcher.setPermits(t, 1)
				others, err := watcher.acquire(t.Context(), 1)
				require.NoError(t, err)
				s := k.newAny(c, name)

				// All have to wait, so Contended is called where replies are read.
				got := make(chan releaseFunc, 20)
				for range cap(got) {
					s.acquireFunc(t.Context(), 1, func(release releaseFunc, err error) {
						if err != nil {
							t.Error(err)
						}
						got <- release
					})
				}
				poll(t, func() bool { return called[1].Load() > 0 })
				require.NoError(t, others(t.Context()))
				for range cap(got) {
					release := <-got
					ends(t, func() { _ = release(t.Context()) })
				}
				poll(t, func() bool { return available(t, watcher) == 1 })
				require.EqualValues(t, cap(got), called[0].Load())

				// Those whose own goroutine calls the hooks.
				for _, ctx := range []context.Context{context.Background(), t.Context()} {
					ends(t, func() {
						release, err := s.acquire(ctx, 1)
						if what == "panic" {
							require.NoError(t, err)
							require.NoError(t, release(ctx))
						}
					})
					poll(t, func() bool { return available(t, watcher) == 1 })
				}
				ends(t, func() { _, _ = s.tryAcquire(context.Background(), 2) })
				ends(t, func() { _ = c.Close(context.Background()) })
				require.EqualValues(t, 1, available(t, watcher))
				if what == "panic" {
					require.GreaterOrEqual(t, log.count("semaphore: a hook or callback panicked"), 3)
					require.NoError(t, c.Close(t.Context()))
				}
			})
		}
	})
}

func TestAcquireFunc_APanicOfTheCallbackIsLogged(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		var log logText
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		c := newClient(t, rdb, semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		s := k.newAny(c, name)
		for i, n := range []int64{0, 1, -1} { // without permits, not set, invalid
			s.acquireFunc(t.Context(), n, func(releaseFunc, error) { panic("of a callback") })
			poll(t, func() bool { return log.count("semaphore: a hook or callback panicked") == i+1 })
		}
	})
}

// failingHook fails the nth script from now.
type failingHook struct {
	left atomic.Int64
	fail func()
}

func (h *failingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *failingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.pass(cmd)
		return next(ctx, cmd)
	}
}

func (h *failingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.pass(cmds[0])
		return next(ctx, cmds)
	}
}

func (h *failingHook) pass(cmd redis.Cmder) {
	if strings.HasPrefix(cmd.Name(), "eval") && h.left.Add(-1) == 0 {
		h.fail()
	}
}

// A hook of the redis client panics, or ends its goroutine, in the first script of each kind of call.
func TestRedisHooks_ThatDoNotReturnHarmNoOtherCaller(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for what, fail := range map[string]func(){
			"panics":             func() { panic("of a hook of go-redis") },
			"ends its goroutine": runtime.Goexit,
		} {
			for where, forever := range map[string]bool{"a context that ends": false, "a context that does not": true} {
				t.Run(fmt.Sprintf("one %s under %s", what, where), func(t *testing.T) {
					t.Parallel()
					rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
					h := &failingHook{fail: fail}
					rdb.AddHook(h)
					c := newClient(t, rdb, semaphore.WithPoll(50*time.Millisecond))
					s := k.newAny(c, name)
					s.setPermits(t, 2)
					ctx := within(t, testTimeout)
					if forever {
						ctx = context.Background()
					}
					for range 2 {
						h.left.Store(1)
						ends(t, func() {
							h.left.Store(1)
							if release, err := s.acquire(ctx, 1); err == nil {
								_ = release(ctx)
							}
						})
						ends(t, func() {
							release, err := s.acquire(ctx, 1)
							if err != nil {
								t.Error(err)
								return
							}
							h.left.Store(1)
							_ = release(ctx)
						})
						ends(t, func() {
							h.left.Store(1)
							_, _ = s.Available(ctx)
						})
						h.left.Store(0)
						poll(t, func() bool { return available(t, s) == 2 })
					}
					release, err := s.acquire(ctx, 2)
					require.NoError(t, err)
					require.NoError(t, release(ctx))
				})
			}
		}
	})
}

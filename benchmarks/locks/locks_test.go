// Package locks compares redislock with bsm/redislock, redsync and rueidislock on one redis-server on loopback.
package locks_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// BENCH=full makes rounds long enough for figures; otherwise they show that the benchmark runs.
var full = os.Getenv("BENCH") == "full"

func TestMain(m *testing.M) {
	if impl := os.Getenv(childImpl); impl != "" {
		run := runChild
		if os.Getenv(childHold) != "" {
			run = runHolder
		}
		if err := run(impl); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redistest.Main(m)
}

const lease = 30 * time.Second

// retry is how long peers that poll pause between two looks: the shortest that makes sense on loopback.
const retry = time.Millisecond

// peer is one implementation.
type peer struct {
	// lock waits for the lock and returns what releases it.
	lock func(ctx context.Context, name string) (unlock func() error, err error)
	// keep takes the lock and keeps it renewed as the implementation's documentation says, until ctx ends.
	keep func(ctx context.Context, name string, lease time.Duration) error
	// close ends the implementation; nil is nothing to do.
	close func() error
}

var impls = []string{"cogwheel", "bsm", "redsync"}

func newPeer(impl string, rdb *redis.Client) (peer, error) {
	switch impl {
	case "cogwheel":
		return newCogwheel(rdb)
	case "cogwheel-string":
		return newCogwheel(rdb, redislock.WithStringKey())
	case "bsm":
		c := bsm.New(rdb)
		options := &bsm.Options{RetryStrategy: bsm.LinearBackoff(retry)}
		return peer{
			lock: func(ctx context.Context, name string) (func() error, error) {
				l, err := c.Obtain(ctx, name, lease, options)
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(ctx) }, nil
			},
			keep: func(ctx context.Context, name string, lease time.Duration) error {
				l, err := c.Obtain(ctx, name, lease, options)
				if err != nil {
					return err
				}
				go watch(ctx, lease, func() { _ = l.Refresh(ctx, lease, nil) })
				return nil
			},
		}, nil
	case "redsync":
		rs := redsync.New(goredis.NewPool(rdb))
		mutex := func(name string, lease time.Duration) *redsync.Mutex {
			return rs.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1<<30), redsync.WithRetryDelay(retry))
		}
		return peer{
			lock: func(ctx context.Context, name string) (func() error, error) {
				m := mutex(name, lease)
				if err := m.LockContext(ctx); err != nil {
					return nil, err
				}
				return func() error { _, err := m.UnlockContext(ctx); return err }, nil
			},
			keep: func(ctx context.Context, name string, lease time.Duration) error {
				m := mutex(name, lease)
				if err := m.LockContext(ctx); err != nil {
					return err
				}
				go watch(ctx, lease, func() { _, _ = m.ExtendContext(ctx) })
				return nil
			},
		}, nil
	case "rueidislock":
		return newRueidis(rdb)
	case "floor":
		// What any client of Redisson's protocol has to pay: its two scripts by go-redis, and nothing around
		// them.
		var n atomic.Int64
		return peer{lock: func(ctx context.Context, name string) (func() error, error) {
			id := fmt.Sprintf("7f1c6d3e-1f5a-4a57-9a0e-3c8f3a7b9d10:%d", n.Add(1))
			err := scripts.LockAcquire.RunOnce(ctx, rdb, []string{name}, id, lease.Milliseconds()).Err()
			return func() error {
				return scripts.LockRelease.RunOnce(ctx, rdb, []string{name}, id, "PUBLISH").Err()
			}, err
		}}, nil
	}
	return peer{}, fmt.Errorf("no implementation %q", impl)
}

// newRueidis returns rueidislock with one key for a lock, as there is one server. It sends the calls of all callers on
// one connection, and renews by itself. It looks again every 20 ms at a lock that is taken, as with client-side caching
// a goroutine that locked a name right after it had released it waited for ever now and then.
func newRueidis(rdb *redis.Client) (peer, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{rdb.Options().Addr}, DisableCache: true},
		KeyMajority:  1, KeyValidity: lease,
	})
	if err != nil {
		return peer{}, err
	}
	return peer{
		lock: func(ctx context.Context, name string) (func() error, error) {
			_, release, err := locker.WithContext(ctx, name)
			return func() error { release(); return nil }, err
		},
		close: func() error { locker.Close(); return nil },
	}, nil
}

// watch is the watchdog that the peers' documentation leaves to the caller.
func watch(ctx context.Context, lease time.Duration, renew func()) {
	t := time.NewTicker(lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			renew()
		case <-ctx.Done():
			return
		}
	}
}

func newCogwheel(rdb *redis.Client, defaults ...redislock.LockOption) (peer, error) {
	w, err := wheel.New()
	if err != nil {
		return peer{}, err
	}
	c, err := redislock.New(rdb, redislock.WithWheel(w), redislock.WithLockDefaults(defaults...))
	if err != nil {
		return peer{}, err
	}
	return peer{
		lock: func(ctx context.Context, name string) (func() error, error) {
			l, err := c.Mutex(name).Lock(ctx)
			if err != nil {
				return nil, err
			}
			return func() error { return l.Unlock(ctx) }, nil
		},
		keep: func(ctx context.Context, name string, lease time.Duration) error {
			_, err := c.Mutex(name, redislock.WithLease(lease)).Lock(ctx)
			return err
		},
		close: func() error {
			if err := c.Close(context.Background()); err != nil {
				return err
			}
			_, err := w.Stop(context.Background())
			return err
		},
	}, nil
}

// open returns an implementation on a server of its own, with a connection for each goroutine.
func open(b *testing.B, impl string) (peer, *redistest.Server) {
	b.Helper()
	server := redistest.Start(b)
	rdb := server.Client(b, func(o *redis.Options) { o.PoolSize = 64 })
	p, err := newPeer(impl, rdb)
	if err != nil {
		b.Fatal(err)
	}
	if p.close != nil {
		b.Cleanup(func() {
			if err := p.close(); err != nil {
				b.Error(err)
			}
		})
	}
	return p, server
}

// round is how long one iteration measures.
func round() time.Duration {
	if full {
		return 2 * time.Second
	}
	return 50 * time.Millisecond
}

// hammer locks and unlocks in n goroutines for a round, at least once in each, and returns how often. name says which lock a
// goroutine uses.
func hammer(ctx context.Context, p peer, n int, d time.Duration, name func(i int) string, section func()) (total int64, err error) {
	var count atomic.Int64
	var failure atomic.Pointer[error]
	var running sync.WaitGroup
	end := time.Now().Add(d)
	for i := range n {
		running.Go(func() {
			for first := true; first || time.Now().Before(end); first = false {
				unlock, err := p.lock(ctx, name(i))
				if err == nil {
					section()
					err = unlock()
				}
				if err != nil {
					failure.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	running.Wait()
	if e := failure.Load(); e != nil {
		return 0, *e
	}
	return count.Load(), nil
}

func nothing() {}

// BenchmarkUncontended is a lock and an unlock of a name without contention, under a context that may
// end, as that of a request, and under one that cannot: cogwheel lets a caller go when its context ends, also
// if Redis hangs, which costs a call that is alone a goroutine.
func BenchmarkUncontended(b *testing.B) {
	contexts := map[string]func(b *testing.B) context.Context{
		"endless":     func(*testing.B) context.Context { return context.Background() },
		"cancellable": func(b *testing.B) context.Context { return b.Context() },
	}
	for _, n := range []int{1, 64} {
		for _, ctx := range []string{"endless", "cancellable"} {
			others := []string{"rueidislock", "floor"}
			if n == 1 {
				others = append(others, "cogwheel-string") // cogwheel with the keys of bsm and redsync
			}
			for _, impl := range slices.Concat(impls, others) {
				b.Run(fmt.Sprintf("goroutines=%d/ctx=%s/impl=%s", n, ctx, impl), func(b *testing.B) {
					p, server := open(b, impl)
					admin := server.Client(b)
					before := redistest.ProcessorTime(b, admin)
					total := rate(b, func() (int64, error) {
						return hammer(contexts[ctx](b), p, n, round(), func(i int) string { return fmt.Sprintf("name:%d", i) }, nothing)
					}, "pairs/s")
					b.ReportMetric((redistest.ProcessorTime(b, admin)-before)*1e6/float64(max(total, 1)), "server-us/pair")
				})
			}
		}
	}
}

// BenchmarkHotName is one lock that 64 goroutines of one process want all the time.
func BenchmarkHotName(b *testing.B) {
	for _, impl := range impls {
		b.Run("processes=1/goroutines=64/impl="+impl, func(b *testing.B) {
			p, _ := open(b, impl)
			guarded := 0
			rate(b, func() (int64, error) {
				before := guarded
				n, err := hammer(b.Context(), p, 64, round(), func(int) string { return "hot" }, func() { guarded++ })
				if err == nil && guarded-before != int(n) {
					err = fmt.Errorf("%d sections, but %d increments: the lock does not exclude", n, guarded-before)
				}
				return n, err
			}, "sections/s")
		})
	}
}

// rate reports how often f did what it counts per second, and the processor time of this process for each. It returns
// the count.
func rate(b *testing.B, f func() (int64, error), unit string) (total int64) {
	b.Helper()
	var spent, used time.Duration
	for b.Loop() {
		start, cpu := time.Now(), cpuTime(b)
		n, err := f()
		if err != nil {
			b.Fatal(err)
		}
		total += n
		spent += time.Since(start)
		used += cpuTime(b) - cpu
	}
	b.ReportMetric(float64(total)/spent.Seconds(), unit)
	b.ReportMetric(float64(used.Microseconds())/float64(max(total, 1)), "client-us/"+strings.TrimSuffix(unit, "s/s"))
	return total
}

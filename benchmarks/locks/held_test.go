package locks_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// BenchmarkHeld keeps 10 000 locks for two leases. cpu-ns/renewal is that of the whole process, in the
// first. late-ms is how long after a third of the lease the last renewal of any lock came at most, by the
// expiry in Redis of a sample of them.
func BenchmarkHeld(b *testing.B) {
	locks, lease := 500, 500*time.Millisecond
	if full {
		locks, lease = 10_000, 15*time.Second
	}
	for _, impl := range impls {
		b.Run(fmt.Sprintf("locks=%d/impl=%s", locks, impl), func(b *testing.B) {
			for b.Loop() {
				p, server := open(b, impl)
				rdb := server.Client(b)
				ctx, cancel := context.WithCancel(b.Context())
				take := func(i int) {
					if err := p.keep(ctx, fmt.Sprintf("name:%d", i), lease); err != nil {
						b.Fatal(err)
					}
				}
				take(0)
				before := memory()
				few := runtime.NumGoroutine()
				for i := 1; i < locks; i++ {
					take(i)
				}
				after := memory()
				many := runtime.NumGoroutine()

				renewals, commands, cpu := callsOf(b, rdb, "pexpire"), sent(b, rdb), cpuTime(b)
				time.Sleep(lease) // without looks, which would cost as much as the renewals
				renewals, commands, cpu = callsOf(b, rdb, "pexpire")-renewals, sent(b, rdb)-commands, cpuTime(b)-cpu
				late := time.Duration(0)
				for end := time.Now().Add(lease); time.Now().Before(end); time.Sleep(lease / 30) {
					late = max(late, lateness(b, rdb, locks, lease))
				}
				cancel()
				b.ReportMetric(float64(many-few), "goroutines")
				b.ReportMetric((after-before)/float64(locks-1), "bytes/lock")
				b.ReportMetric(float64(cpu.Nanoseconds())/float64(max(renewals, 1)), "cpu-ns/renewal")
				b.ReportMetric(float64(commands)/float64(max(renewals, 1)), "commands/renewal")
				b.ReportMetric(float64(late.Microseconds())/1000, "late-ms")
			}
		})
	}
}

// memory is the heap and the stacks in use.
func memory() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// callsOf is how often the server has executed a command, in scripts too.
func callsOf(b *testing.B, rdb *redis.Client, command string) (n int64) {
	b.Helper()
	for line := range strings.Lines(rdb.Info(b.Context(), "commandstats").Val()) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			_, _ = fmt.Sscanf(rest, "%d", &n)
		}
	}
	return n
}

// sent is how many scripts the server was sent.
func sent(b *testing.B, rdb *redis.Client) int64 {
	b.Helper()
	return callsOf(b, rdb, "evalsha") + callsOf(b, rdb, "eval")
}

// lateness is by how much the least fresh of some locks has less than two thirds of its lease left.
func lateness(b *testing.B, rdb *redis.Client, locks int, lease time.Duration) time.Duration {
	b.Helper()
	pipe := rdb.Pipeline()
	var ttls []*redis.DurationCmd
	for i := 0; i < locks; i += max(locks/20, 1) {
		ttls = append(ttls, pipe.PTTL(b.Context(), fmt.Sprintf("name:%d", i)))
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	least := lease
	for _, ttl := range ttls {
		least = min(least, ttl.Val())
	}
	return max(lease-lease/3-least, 0)
}

// BenchmarkCutOff cuts a holder off from Redis and measures when it is told, and how long before the server
// gives the lock away. The peers do not.
func BenchmarkCutOff(b *testing.B) {
	b.Run("impl=cogwheel", func(b *testing.B) {
		const lease = 3 * time.Second
		server := redistest.Start(b)
		admin := server.Client(b)
		var told, early time.Duration
		n := 0
		for b.Loop() {
			n++
			name := fmt.Sprintf("name:%d", n)
			cut, left, err := cutOff(b, server, admin, name, lease)
			if err != nil {
				b.Fatal(err)
			}
			told += cut
			early += left
		}
		b.ReportMetric(float64(told.Microseconds())/1000/float64(n), "told-ms")
		b.ReportMetric(float64(early.Microseconds())/1000/float64(n), "before-expiry-ms")
	})
}

// cutOff returns how long after it was cut off a holder is told, and how long the key then still lasts.
func cutOff(b *testing.B, server *redistest.Server, admin *redis.Client, name string, lease time.Duration) (told, left time.Duration, err error) {
	b.Helper()
	dialer := &redistest.FaultDialer{}
	w, err := wheel.New()
	if err != nil {
		return 0, 0, err
	}
	defer func() { _, _ = w.Stop(context.Background()) }()
	rdb := server.Client(b, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, time.Second })
	c, err := redislock.New(rdb, redislock.WithWheel(w))
	if err != nil {
		return 0, 0, err
	}
	l, err := c.Mutex(name, redislock.WithLease(lease)).Lock(b.Context())
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	dialer.Set(redistest.BlackholeUp | redistest.BlackholeDown)
	<-l.Done()
	told = time.Since(start)
	left = admin.PTTL(b.Context(), name).Val()
	if left <= 0 {
		return 0, 0, fmt.Errorf("told after the key had gone: %v", left)
	}
	dialer.Set(redistest.Pass)
	dialer.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return told, left, c.Close(ctx)
}

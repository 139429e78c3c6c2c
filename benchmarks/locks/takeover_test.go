package locks_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// With childHold, a process takes that many locks of childImpl, says so, and keeps them until it is killed.
const (
	childHold  = "LOCKS_BENCH_HOLD"
	childLease = "LOCKS_BENCH_LEASE"
)

func takeoverName(i int) string { return "name:" + strconv.Itoa(i) }

// runHolder spreads the acquisitions over a third of the lease, so that the leases do not end together.
func runHolder(impl string) error {
	lease, err := time.ParseDuration(os.Getenv(childLease))
	if err != nil {
		return err
	}
	locks, err := strconv.Atoi(os.Getenv(childHold))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr), PoolSize: 64})
	p, err := newPeer(impl, rdb)
	if err != nil {
		return err
	}
	for i := range locks {
		if err := p.keep(context.Background(), takeoverName(i), lease); err != nil {
			return err
		}
		time.Sleep(lease / 3 / time.Duration(locks))
	}
	fmt.Println("holding")
	select {} // until it is killed
}

// newWaiter returns what waits for a lock as a user who reads no more than the first page of the documentation has
// it: cogwheel by its defaults, bsm/redislock with the interval of its README, 100 ms, and redsync by its defaults, a
// random interval of 50 to 250 ms.
func newWaiter(impl string, rdb *redis.Client) (wait func(ctx context.Context, name string) error, p peer, err error) {
	switch impl {
	case "bsm":
		c := bsm.New(rdb)
		options := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
		return func(ctx context.Context, name string) error {
			_, err := c.Obtain(ctx, name, lease, options)
			return err
		}, peer{}, nil
	case "redsync":
		rs := redsync.New(goredis.NewPool(rdb))
		return func(ctx context.Context, name string) error {
			return rs.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1<<30)).LockContext(ctx)
		}, peer{}, nil
	}
	p, err = newPeer(impl, rdb)
	return func(ctx context.Context, name string) error {
		_, err := p.lock(ctx, name)
		return err
	}, p, err
}

// BenchmarkTakeover kills a process that holds locks and measures how long after the end of each lease the next
// holder, which waits in another process, has the lock. polls/s is what a waiter sends while it waits.
func BenchmarkTakeover(b *testing.B) {
	locks, lease := 20, 600*time.Millisecond
	if full {
		locks, lease = 100, 5*time.Second
	}
	for _, impl := range impls {
		b.Run(fmt.Sprintf("locks=%d/impl=%s", locks, impl), func(b *testing.B) {
			var late []time.Duration
			var polls float64
			for b.Loop() {
				more, rate := takeover(b, impl, locks, lease)
				late, polls = append(late, more...), polls+rate
			}
			slices.Sort(late)
			for _, percent := range []int{1, 5, 10, 25, 50, 75, 90, 95, 99, 100} {
				ms := float64(late[(len(late)-1)*percent/100].Microseconds()) / 1000
				b.ReportMetric(ms, fmt.Sprintf("p%d-after-ms", percent))
			}
			b.ReportMetric(polls/float64(b.N), "polls/s")
		})
	}
}

func takeover(b *testing.B, impl string, locks int, lease time.Duration) (late []time.Duration, polls float64) {
	b.Helper()
	server := redistest.Start(b)
	rdb := server.Client(b, func(o *redis.Options) { o.PoolSize = 64 })
	sent := &trips{}
	rdb.AddHook(sent)
	holder := startHolder(b, impl, server.Addr(), locks, lease)
	wait, p, err := newWaiter(impl, rdb)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	taken, errs := make([]time.Time, locks), make([]error, locks)
	var waiting sync.WaitGroup
	for i := range locks {
		waiting.Go(func() {
			errs[i] = wait(ctx, takeoverName(i))
			taken[i] = time.Now()
		})
	}
	time.Sleep(lease / 5) // all of them wait
	before, began := sent.n.Load(), time.Now()
	time.Sleep(lease / 5)
	polls = float64(sent.n.Load()-before) / time.Since(began).Seconds() / float64(locks)

	if err := holder.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	_ = holder.Wait()                 // it was killed
	time.Sleep(10 * time.Millisecond) // what it sent last has arrived
	ends := leaseEnds(b, rdb, locks)
	waiting.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	if p.close != nil {
		if err := p.close(); err != nil {
			b.Fatal(err)
		}
	}
	for i, end := range ends {
		late = append(late, taken[i].Sub(end))
	}
	return late, polls
}

// startHolder starts a process that holds locks, and returns when it has them.
func startHolder(b *testing.B, impl, addr string, locks int, lease time.Duration) *exec.Cmd {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childImpl+"="+impl, childAddr+"="+addr,
		childHold+"="+strconv.Itoa(locks), childLease+"="+lease.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill() }) // if it has not been killed
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatal("the holder ended: ", err)
	}
	return cmd
}

// leaseEnds returns when the leases end.
func leaseEnds(b *testing.B, rdb *redis.Client, locks int) (ends []time.Time) {
	b.Helper()
	ttls := make([]*redis.DurationCmd, locks)
	pipe := rdb.Pipeline()
	for i := range ttls {
		ttls[i] = pipe.PTTL(b.Context(), takeoverName(i))
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	for _, ttl := range ttls {
		ends = append(ends, now.Add(ttl.Val()))
	}
	return ends
}

// trips counts what a client sends: a pipeline once.
type trips struct{ n atomic.Int64 }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

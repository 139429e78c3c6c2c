package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// benchmarks is the answer of bench.
type benchmarks struct {
	RoundTrip    roundTrip     `json:"round_trip"`
	Measurements []measurement `json:"measurements"`
}

type roundTrip struct {
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
}

type measurement struct {
	What      string `json:"what"`
	Callers   int    `json:"callers"`
	Names     int    `json:"names"`
	PerSecond int64  `json:"per_second"`
}

// benchLease is how long locks outlive a tool that is killed.
const benchLease = 10 * time.Second

func bench(ctx context.Context, t *tool) error {
	switch {
	case t.duration < 10*time.Millisecond || t.duration > time.Minute:
		return usageError("--duration must be 10ms to 1m")
	case t.callers < 1 || t.callers > 1000:
		return usageError("--callers must be 1 to 1000")
	}
	var b benchmarks
	var err error
	if b.RoundTrip, err = t.roundTrips(ctx); err != nil {
		return err
	}
	id := rand.Text()
	if err := t.benchLocks(ctx, id, &b); err != nil {
		return err
	}
	if err := t.benchLimits(ctx, id, &b); err != nil {
		return err
	}
	if t.json {
		return t.printJSON(b)
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	printf(w, "round trip\t1 caller\t\t%.0fµs median, %.0fµs for 99%%\n", b.RoundTrip.Median, b.RoundTrip.P99)
	for _, m := range b.Measurements {
		printf(w, "%s\t%s\t%s\t%d/s\n", m.What, plural(m.Callers, "caller"), plural(m.Names, "name"), m.PerSecond)
	}
	return w.Flush()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// roundTrips measures PING.
func (t *tool) roundTrips(ctx context.Context) (roundTrip, error) {
	var took []time.Duration
	for end := time.Now().Add(t.duration); len(took) == 0 || time.Now().Before(end); {
		sent := time.Now()
		if err := t.rdb.Ping(ctx).Err(); err != nil {
			return roundTrip{}, err
		}
		took = append(took, time.Since(sent))
	}
	slices.Sort(took)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return roundTrip{micros(took[len(took)/2]), micros(took[len(took)*99/100])}, nil
}

// measure has callers call f for the duration, and adds how often all of them together did.
func (t *tool) measure(
	ctx context.Context, b *benchmarks, what string, callers, names int, f func(caller int) error,
) error {
	var calls atomic.Int64
	var failed atomic.Pointer[error]
	var running sync.WaitGroup
	began := time.Now()
	for i := range callers {
		running.Go(func() {
			for time.Since(began) < t.duration && ctx.Err() == nil && failed.Load() == nil {
				if err := f(i); err != nil {
					failed.Store(&err)
					return
				}
				calls.Add(1)
			}
		})
	}
	running.Wait()
	perSecond := int64(float64(calls.Load()) / time.Since(began).Seconds())
	b.Measurements = append(b.Measurements, measurement{what, callers, names, perSecond})
	if err := failed.Load(); err != nil {
		return *err
	}
	return ctx.Err()
}

func (t *tool) benchLocks(ctx context.Context, id string, b *benchmarks) error {
	return t.withLocks(ctx, func(c *redislock.Client) error {
		mutexes := make([]*redislock.Mutex, t.callers)
		for i := range mutexes {
			name := fmt.Sprintf("cogwheel:bench:%s:%d", id, i)
			mutexes[i] = c.Mutex(name, redislock.WithLease(benchLease), redislock.WithoutRenewal())
		}
		pair := func(i int) error {
			l, err := mutexes[i].Lock(ctx)
			if err != nil {
				return err
			}
			return l.Unlock(ctx)
		}
		if err := t.measure(ctx, b, "lock and unlock", 1, 1, pair); err != nil {
			return err
		}
		return t.measure(ctx, b, "lock and unlock", t.callers, t.callers, pair)
	})
}

func (t *tool) benchLimits(ctx context.Context, id string, b *benchmarks) error {
	return t.withLimits(ctx, func(c *ratelimit.Client) (err error) {
		k := c.Limiter("cogwheel:bench:"+id, ratelimit.PerSecond(1e9))
		defer func() {
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
			defer cancel()
			for i := range t.callers {
				err = errors.Join(err, k.Reset(after, strconv.Itoa(i)))
			}
		}()
		one := func(int) error {
			_, err := k.Allow(ctx, "0")
			return err
		}
		if err := t.measure(ctx, b, "limiter decisions", 1, 1, one); err != nil {
			return err
		}
		if err := t.measure(ctx, b, "limiter decisions", t.callers, 1, one); err != nil {
			return err
		}
		return t.measure(ctx, b, "limiter decisions", t.callers, t.callers, func(i int) error {
			_, err := k.Allow(ctx, strconv.Itoa(i))
			return err
		})
	})
}

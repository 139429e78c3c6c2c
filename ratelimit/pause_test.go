package ratelimit_test

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// rolePaused is that of a process that is stopped now and then while it asks for permits.
const rolePaused = "paused"

// pausedTimeout is the timeout of that process. After a pause it waits as long again for an answer.
const pausedTimeout = time.Second

// pausedCounts is what such a process reports.
type pausedCounts struct{ Calls, Degraded, Failed, MostGranted int }

func runPaused() error {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr)})
	defer rdb.Close()
	w, err := wheel.New()
	if err != nil {
		return err
	}
	c, err := ratelimit.New(
		rdb, ratelimit.WithWheel(w), ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithTimeout(pausedTimeout),
	)
	if err != nil {
		return err
	}
	k := c.Limiter("paused", ratelimit.PerHour(10))
	lasts, err := time.ParseDuration(os.Getenv(childEnd))
	if err != nil {
		return err
	}
	var counts pausedCounts
	var mu sync.Mutex
	granted := map[string]int{}
	var next atomic.Int64
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for end := time.Now().Add(lasts); len(granted) == 0; {
		for range 24 {
			all.Go(func() {
				for time.Now().Before(end) {
					key := strconv.FormatInt(next.Add(1)/15, 10)
					r, err := k.Allow(ctx, key)
					mu.Lock()
					counts.Calls++
					switch {
					case err != nil:
						counts.Failed++
					case r.Source == ratelimit.SourceDegraded:
						counts.Degraded++
					}
					if granted[key]++; !r.Allowed {
						granted[key]--
					}
					counts.MostGranted = max(counts.MostGranted, granted[key])
					mu.Unlock()
				}
			})
		}
		all.Wait()
	}
	if err := c.Close(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(counts)
}

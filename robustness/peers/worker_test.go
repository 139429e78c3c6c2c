package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Child(work)
	redistest.Parallel(6)
	redistest.Main(m)
}

// setupEnv has the setup of a worker.
const setupEnv = "PEERS_TEST_SETUP"

// setup is what a worker does: in some loops for each name, it takes the lock, holds it, and releases it.
type setup struct {
	Library string   `json:"library"`
	Addr    string   `json:"addr"`
	Names   []string `json:"names"`
	Loops   int      `json:"loops"`

	LeaseMillis   int64 `json:"leaseMillis"`
	OverrunMillis int64 `json:"overrunMillis"` // the lease of holds that are not extended and released too late
	HoldMicros    int64 `json:"holdMicros"`    // the longest of the usual holds
	RestMicros    int64 `json:"restMicros"`    // the pause of a loop after each hold

	// A library that polls pauses for a time between them, at random.
	RetryMinMillis int64 `json:"retryMinMillis"`
	RetryMaxMillis int64 `json:"retryMaxMillis"`

	// How many of 1000 holds are extended past the first lease, are released after their lease, or are extended until
	// the process is killed.
	Long    int `json:"long"`
	Overrun int `json:"overrun"`
	Doomed  int `json:"doomed"`
}

// work runs a worker until its standard input ends, and then ends its holds. It prints a line whenever what it may
// believe of a hold changes; the first number is that of the loop. fleet.read has the lines.
func work(string) (err error) {
	var s setup
	if err := json.Unmarshal([]byte(os.Getenv(setupEnv)), &s); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer rdb.Close()
	l, closing, err := newLibrary(s.Library, rdb, func() time.Duration {
		return between(time.Duration(s.RetryMinMillis)*time.Millisecond, time.Duration(s.RetryMaxMillis)*time.Millisecond)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing(context.Background())) }()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		return err
	}
	fmt.Println("ready")
	failures := make(chan error, len(s.Names)*s.Loops)
	var running sync.WaitGroup
	for i, name := range s.Names {
		for j := range s.Loops {
			loop := &loop{s, l, name, i*s.Loops + j}
			running.Go(func() {
				for ctx.Err() == nil {
					if err := loop.hold(ctx); err != nil && ctx.Err() == nil {
						failures <- fmt.Errorf("%s: %w", s.Library, err)
						stop()
					}
				}
			})
		}
	}
	running.Wait()
	close(failures)
	for e := range failures {
		err = errors.Join(err, e)
	}
	return err
}

// loop is one of a worker.
type loop struct {
	setup
	library library
	name    string
	id      int
}

// hold takes the lock once. After the end of ctx it waits no longer, and the hold ends at once.
func (l *loop) hold(ctx context.Context) error {
	draw := rand.IntN(1000)
	doomed, long := draw < l.Doomed, draw >= l.Doomed && draw < l.Doomed+l.Long
	overrun := !doomed && !long && draw < l.Doomed+l.Long+l.Overrun
	lease := time.Duration(l.LeaseMillis) * time.Millisecond
	if overrun {
		lease = time.Duration(l.OverrunMillis) * time.Millisecond
	}
	// A library may give up at the end of a lease if the context has no deadline, as bsm/redislock does.
	waiting, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	h, err := l.library.lock(waiting, l.name, lease, !overrun)
	if err != nil {
		return err
	}
	begun, ends := now(), h.until()
	fmt.Println("hold", l.id, l.name, int64(begun), int64(ends))
	after := context.WithoutCancel(ctx)
	switch {
	case overrun:
		_ = sleep(after, lease+lease/5)
	case doomed || long:
		if doomed {
			fmt.Println("doomed", l.id)
		}
		ends, err = l.extend(ctx, h, lease, long)
	default:
		err = sleep(ctx, rand.N(time.Duration(l.HoldMicros)*time.Microsecond+1))
	}
	fmt.Println("end", l.id, int64(now()))
	held, releaseErr := h.release(after)
	if !held && releaseErr == nil && now() < ends {
		fmt.Println("lost", l.id, "release")
	}
	if rest := time.Duration(l.RestMicros) * time.Microsecond; rest > 0 {
		_ = sleep(ctx, rest)
	}
	return errors.Join(err, releaseErr)
}

// extend extends a hold four times, or until the end of ctx, and returns until when it is held.
func (l *loop) extend(ctx context.Context, h holder, lease time.Duration, four bool) (ends instant, err error) {
	ends = h.until()
	for i := 0; !four || i < 4; i++ {
		if !slept(ctx, lease/3) {
			return ends, nil
		}
		held, err := h.extend(ctx)
		if err != nil {
			return ends, err
		}
		if !held {
			if now() < ends {
				fmt.Println("lost", l.id, "extend")
			}
			return ends, nil
		}
		ends = h.until()
		fmt.Println("until", l.id, int64(ends))
	}
	return ends, nil
}

package limits_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// floor is what every client has to pay whose callers share the scripts of one key: the script by go-redis, and a
// channel for each caller. Its limit is a million a second. It repeats, remembers and counts nothing. As in ratelimit,
// there are two scripts in flight if there are callers for both.
type floor struct {
	rdb  *redis.Client
	args []any

	mu       sync.Mutex
	waiting  []chan error
	inFlight int
	starting bool // a script whose callers have not been collected
}

// enough is the number of callers for which floor sends a second script. Of 16, 28, 40 and 1000 it was the best, with
// INCRBY in place of the script.
const enough = 28

func newFloor(rdb *redis.Client) peer {
	second := plenty.Per.Microseconds() * plenty.Burst / plenty.Rate
	f := &floor{rdb: rdb, args: []any{1, second, 0, 0, 1, second / plenty.Burst, 0}}
	return peer{"floor", f.allow}
}

func (f *floor) allow(ctx context.Context, key string) (bool, error) {
	done := make(chan error, 1)
	f.mu.Lock()
	f.waiting = append(f.waiting, done)
	starts := !f.starting && (f.inFlight == 0 || f.inFlight == 1 && len(f.waiting) >= enough)
	if starts {
		f.inFlight++
		f.starting = true
	}
	f.mu.Unlock()
	if starts {
		go f.send(key)
	}
	select {
	case err := <-done:
		return err == nil, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (f *floor) send(key string) {
	for {
		f.mu.Lock()
		callers := f.waiting
		f.waiting, f.starting = nil, false
		if len(callers) == 0 {
			f.inFlight--
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		reply, err := scripts.RateGCRA.RunOnce(context.Background(), f.rdb, []string{key}, append(slices.Clone(f.args), len(callers))...).Int64Slice()
		if err == nil && reply[4] != int64(len(callers)) {
			err = fmt.Errorf("%d of %d are granted", reply[4], len(callers))
		}
		for _, done := range callers {
			done <- err
		}
	}
}

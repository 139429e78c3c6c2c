package delay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// loseReplies makes clients of the returned dialer miss one reply in ten of a script until the test ends, and returns
// how many were lost.
func loseReplies(t *testing.T, d *redistest.FaultDialer, s *scripts.Script) (count func() int) {
	t.Helper()
	var mu sync.Mutex
	lost := 0
	go func() {
		for ctx := t.Context(); ; {
			mu.Lock()
			loss := []redistest.Loss{redistest.Cut, redistest.Swallow}[lost%2]
			mu.Unlock()
			select {
			case <-d.LoseReply(s.SHA(), 10, loss):
			case <-ctx.Done():
				return
			}
			mu.Lock()
			lost++
			mu.Unlock()
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return lost
	}
}

// While one reply in ten is lost, each task that was not cancelled runs once, without the loss of a lease. Cancel says
// true of tasks that never run, and false of those that do.
// Guarantees: D2, D3, D4, D5.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	const tasks, parallel = 2000, 32
	name := redistest.Name(t)
	newFaulty := func(s *scripts.Script) (*delay.Queue, func() int) {
		d := &redistest.FaultDialer{}
		rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
			o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, 500*time.Millisecond, 10
		})
		return newClient(t, rdb).Queue(name), loseReplies(t, d, s)
	}
	orders, lostEdits := newFaulty(scripts.DelayEdit)

	type task struct {
		ran       int
		cancelled bool
	}
	var mu sync.Mutex
	all, left := make(map[string]*task), tasks
	over := make(chan struct{})
	leave := func() { // mu is held
		if left--; left == 0 {
			close(over)
		}
	}
	handle := func(_ context.Context, attempt *delay.Task) error {
		mu.Lock()
		defer mu.Unlock()
		one := all[attempt.ID]
		if one.ran++; one.ran == 1 && !one.cancelled {
			leave()
		}
		if attempt.Losses > 0 {
			t.Errorf("%s has lost its lease, which is %v", attempt.ID, delay.DefaultLease)
		}
		return nil
	}
	var lostClaims [2]func() int
	for i := range lostClaims {
		var q *delay.Queue
		q, lostClaims[i] = newFaulty(scripts.DelayWork)
		serve(t, q, 4, handle)
	}

	var callers sync.WaitGroup
	for caller := range parallel {
		callers.Go(func() {
			for i := caller; i < tasks; i += parallel {
				id := fmt.Sprint("order-", i)
				mu.Lock()
				all[id] = &task{}
				mu.Unlock()
				if err := orders.Schedule(t.Context(), id, rand.N(50*time.Millisecond), nil); err != nil {
					t.Error(err)
				}
				if i%3 != 0 {
					continue
				}
				ok, err := orders.Cancel(t.Context(), id)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if all[id].cancelled = ok; ok {
					leave()
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	select {
	case <-over:
	case <-time.After(2 * redistest.Patience):
		mu.Lock()
		t.Fatalf("%d tasks have neither run nor been cancelled", left)
	}
	rdb := redistest.Shared(t).Client(t)
	redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:running").Val() == 0 })
	mu.Lock()
	defer mu.Unlock()
	cancelled := 0
	for id, one := range all {
		if one.cancelled {
			cancelled++
			require.Zero(t, one.ran, "%s was cancelled", id)
		} else {
			require.Equal(t, 1, one.ran, id)
		}
	}
	require.Positive(t, cancelled)
	t.Logf("%d cancelled; lost replies: %d of edits, %d and %d of claims", cancelled, lostEdits(), lostClaims[0](), lostClaims[1]())
	require.Positive(t, lostEdits())
	require.Positive(t, lostClaims[0]()+lostClaims[1]())
}

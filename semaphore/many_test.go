package semaphore_test

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// SEMAPHORE_TEST_PERMITS=30000 makes it many.
func TestLeased_ManyAreToldTogetherThatRedisHangs(t *testing.T) {
	grants, lease := 1000, 4*time.Second
	if many := os.Getenv("SEMAPHORE_TEST_PERMITS"); many != "" {
		var err error
		grants, err = strconv.Atoi(many)
		require.NoError(t, err)
		lease = semaphore.DefaultLease
	}
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	l := c.Leased(redistest.Name(t), semaphore.WithLease(lease))
	setLeased(t, l, int64(grants))
	held := make([]*semaphore.Grant, grants)
	var taking sync.WaitGroup
	for part := range 64 {
		taking.Go(func() {
			for i := part; i < grants; i += 64 {
				var err error
				if held[i], err = l.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	taking.Wait()
	require.False(t, t.Failed())
	server.Pause()
	var told time.Duration // after the deadline, at most
	for _, g := range held {
		<-g.Done()
		require.ErrorIs(t, g.Err(), semaphore.ErrLost)
		told = max(told, time.Since(g.Deadline()))
	}
	t.Logf("%d grants lost, the last told %v after its deadline", grants, told)
	if grants > 1000 { // a few are told too soon to tell a difference, and not alone on the machine
		require.Less(t, told, lease/100+50*time.Millisecond, "after Redis may have given it away")
	}
	server.Resume()
	poll(t, func() bool { return available(t, l) == int64(grants) })
}

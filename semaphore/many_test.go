package semaphore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// SEMAPHORE_TEST_PERMITS=30000 makes it many.
func TestLeased_ManyAreToldTogetherThatRedisHangs(t *testing.T) {
	lease := 4 * time.Second
	grants, full := redistest.Scale(t, "SEMAPHORE_TEST_PERMITS", 1000)
	if full {
		lease = semaphore.DefaultLease
	}
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	l := c.Leased(redistest.Name(t), semaphore.WithLease(lease))
	setLeased(t, l, int64(grants))
	held := make([]*semaphore.Grant, grants)
	redistest.Each(t, grants, func(i int) (err error) {
		held[i], err = l.Acquire(t.Context(), 1)
		return err
	})
	server.Pause()
	var told time.Duration // after the deadline, at most
	for _, g := range held {
		<-g.Done()
		require.ErrorIs(t, g.Err(), semaphore.ErrLost)
		told = max(told, time.Since(g.Deadline()))
	}
	t.Logf("%d grants lost, the last told %v after its deadline", grants, told)
	if full { // a few are told too soon to tell a difference, and not alone on the machine
		require.Less(t, told, lease/100+50*time.Millisecond, "after Redis may have given it away")
	}
	server.Resume()
	poll(t, func() bool { return available(t, l) == int64(grants) })
}

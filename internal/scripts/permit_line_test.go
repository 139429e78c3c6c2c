package scripts_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// hears subscribes the channel of a process that waits.
func (s sem) hears(process string) *redis.PubSub {
	s.t.Helper()
	sub := s.rdb.Subscribe(s.t.Context(), scripts.SemChannel(s.name)+":"+process)
	s.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(s.t.Context())
	require.NoError(s.t, err)
	return sub
}

// waits asks for permits from the place of a process in the line, and returns how many requests were served, and the
// place. The requests have waited for so long, 10 ms less for each of them than for the one before.
func (s sem) waits(process string, seq int, waited time.Duration, wants ...int) (served, place int64) {
	s.t.Helper()
	var times []string
	for i := range wants {
		times = append(times, fmt.Sprint(waited.Milliseconds()-int64(10*i)))
	}
	args := []any{
		seq, seq - 1, 60_000, "PUBLISH", scripts.SemChannel(s.name), 0, process + ":1 90000 " + strings.Join(times, ","),
	}
	for _, n := range wants {
		args = append(args, n)
	}
	reply := s.run(scripts.SemAcquire, []string{s.name, s.part("acquiring:" + process)}, args...)
	return reply[0], reply[4]
}

// Two large requests, each of which was first for a while, do not keep a part of the permits each and wait for the part
// of the other.
func TestPermitLine_LargeRequestsDoNotShareWhatIsKept(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	heard := s.hears("b")
	s.put(0)
	_, place := s.waits("b", 1, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, place)
	s.release(1, 1, 0) // wakes b, for which one is kept
	_, place = s.waits("a", 1, 900*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "b was woken")
	s.release(2, 2, 0) // wakes a, for which two are kept
	_, place = s.waits("a", 2, 900*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "two are left to a")
	_, place = s.waits("b", 2, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "b is before a")

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
		message, err := heard.ReceiveMessage(ctx)
		cancel()
		require.NoError(t, err)
		require.Equal(t, "0 b:1", message.Payload, "by the release, and as all three are left to it now")
	}
	served, place := s.waits("b", 3, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, served)
	require.EqualValues(t, -1, place)
	require.Equal(t, "0", s.free())
}

// A process whose first request has taken what was kept for it does not count that as taken by others: then nothing
// would be kept for a second.
func TestPermitLine_AProcessWithMoreRequestsTakesWhatWasKeptForItItself(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	s.put(0)
	_, place := s.waits("a", 1, time.Second, 1, 1)
	require.EqualValues(t, 1, place)
	s.release(1, 1, 0)
	served, place := s.waits("a", 2, time.Second, 1, 1)
	require.EqualValues(t, 1, served)
	require.EqualValues(t, 1, place, "for the second request")
	s.release(2, 1, 0)
	require.Contains(t, s.rdb.Get(t.Context(), s.part("kept")).Val(), " 1 a:1")

	s.put(0) // another takes it
	_, place = s.waits("a", 3, time.Second, 1)
	require.EqualValues(t, 1, place)
	s.release(3, 1, 0)
	require.NotContains(t, s.rdb.Get(t.Context(), s.part("kept")).Val(), "a:1")
}

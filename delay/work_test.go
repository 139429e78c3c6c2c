package delay_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A script that claims many tasks takes a while, and so does its reply. The tasks are not that late.
func TestQueue_TimesTasksByTheQuickestReply(t *testing.T) {
	t.Parallel()
	began, instant := time.Unix(1_800_000_000, 0), 5e8*time.Second
	var server clock.Server
	due := func(after, took time.Duration) time.Time {
		cmd := redis.NewCmd(t.Context())
		cmd.SetVal([]any{
			int64(-1), int64(0), int64(0), int64(0), "", int64(1) << 52, int64(-1), (instant + after).Microseconds(),
			"id", ":0:payload", (5 * time.Millisecond).Microseconds(), int64(0), int64(0), "1", int64(1),
		})
		sent := began.Add(after)
		due, err := delay.DueOfClaimed(&server, redisconn.Reply{Cmd: cmd, SentAt: sent}, sent.Add(took))
		require.NoError(t, err)
		return due.Add(-after)
	}
	exact := began.Add(5 * time.Millisecond)
	require.Equal(t, exact.Add(time.Millisecond), due(0, time.Millisecond), "it counts from the reply")
	require.WithinRange(t, due(50*time.Millisecond, 20*time.Millisecond), exact, exact.Add(1100*time.Microsecond))
	require.Equal(t, exact, due(time.Second, 0))
}

// A process leaves to one before it in the list what is due after its last call has run, however late the reply comes.
func TestQueue_ASlowReplyMakesNoTaskOverdue(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	overdue, err := q.OverdueBehind(t.Context())
	require.NoError(t, err)
	require.Zero(t, overdue)
}

package delay_test

import (
	"context"
	"fmt"
	"slices"
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
		attempt := fmt.Sprint("0:0:1@", (instant + after + 5*time.Millisecond).Microseconds())
		sent := began.Add(after)
		r := claimOf(instant+after, "id", ":0:payload", attempt)
		r.SentAt = sent
		due, err := delay.DueOfClaimed(&server, r, sent.Add(took))
		require.NoError(t, err)
		return due.Add(-after)
	}
	exact := began.Add(5 * time.Millisecond)
	require.Equal(t, exact.Add(time.Millisecond), due(0, time.Millisecond), "it counts from the reply")
	require.WithinRange(t, due(50*time.Millisecond, 20*time.Millisecond), exact, exact.Add(1100*time.Microsecond))
	require.Equal(t, exact, due(time.Second, 0))
}

// claimOf returns the reply to a call that has claimed a task.
func claimOf(now time.Duration, task ...any) redisconn.Reply {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(append([]any{
		int64(-1), int64(0), int64(0), int64(0), "", int64(1) << 52, int64(-1), now.Microseconds(), int64(1),
	}, task...))
	return redisconn.Reply{Cmd: cmd}
}

func TestQueue_RefusesAClaimThatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, task := range [][]any{
		{"id", ":0:payload"},
		{"id", ":0:payload", nil},
		{"id", ":0:payload", ""},
		{"id", ":0:payload", "0:0:1"},
		{"id", ":0:payload", "0:0:1@"},
		{"id", ":0:payload", "0:0@5"},
		{"id", ":0:payload", "0:0:1@5:x"},
		{"id", ":0:payload", "x:0:1@5"},
		{"id", int64(0), "0:0:1@5"},
	} {
		var server clock.Server
		_, err := delay.DueOfClaimed(&server, claimOf(time.Hour, task...), time.Now())
		require.Error(t, err, "%v", task)
	}
}

// A process leaves to one before it in the list what is due after its last call has run, however late the reply comes.
func TestQueue_ASlowReplyMakesNoTaskOverdue(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	overdue, err := q.OverdueBehind(t.Context())
	require.NoError(t, err)
	require.Zero(t, overdue)
}

// Processes outside of the list let each other be first in turns. The first one of the list asks before all others.
func TestQueue_TheFirstInTheListAsksAtOnce(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	var unlisted []time.Duration
	for range 20 {
		first, err := q.AsksIn(t.Context(), 1)
		require.NoError(t, err)
		require.InDelta(t, 999*time.Millisecond, first, float64(time.Microsecond))
		other, err := q.AsksIn(t.Context(), -1)
		require.NoError(t, err)
		unlisted = append(unlisted, other)
	}
	require.Greater(t, slices.Max(unlisted), slices.Min(unlisted)+time.Millisecond)
}

package scripts_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func TestRunBatchOnce_OfSeveralScripts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	batch := func(name string) []scripts.Call {
		channel := scripts.LockChannel(name)
		return []scripts.Call{
			{Script: scripts.LockAcquire, Keys: []string{name}, Args: []any{"me:1", 9_000}},
			{Script: scripts.LockRelease, Keys: []string{name}, Args: []any{"me:1", "PUBLISH", channel}},
			{Script: scripts.LockRelease, Keys: []string{name}, Args: []any{"me:1", "PUBLISH", channel}},
		}
	}

	t.Run("replies come in order, whether the server knows the scripts or not", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		for range 2 {
			cmds := scripts.RunBatchOnce(ctx, s.Client(t), batch("name"))
			require.Equal(t, []any{int64(1), int64(9_000)}, cmds[0].Val())
			require.Equal(t, int64(1), cmds[1].Val())
			require.Equal(t, int64(0), cmds[2].Val())
		}
	})

	t.Run("a lost reply is an error, and nothing is sent again", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		s := redistest.Start(t)
		rdb := s.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, 100*time.Millisecond })
		scripts.RunBatchOnce(ctx, rdb, batch("name"))
		lost := d.LoseReply("evalsha", 1, redistest.Cut)
		before := calls(ctx, t, s.Client(t), "evalsha")
		for _, cmd := range scripts.RunBatchOnce(ctx, rdb, batch("name")) {
			require.Error(t, cmd.Err())
		}
		<-lost
		require.Equal(t, before+3, calls(ctx, t, s.Client(t), "evalsha"))
	})
}

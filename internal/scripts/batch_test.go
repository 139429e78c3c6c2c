package scripts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func TestRunBatch_OfSeveralScripts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	batch := func(name string) []scripts.Call {
		return []scripts.Call{
			{Script: scripts.LockAcquire, Keys: []string{name}, Args: []any{"me:1", 9_000}},
			{Script: scripts.LockRelease, Keys: []string{name}, Args: []any{"me:1", "PUBLISH"}},
			{Script: scripts.LockRelease, Keys: []string{name}, Args: []any{"me:1", "PUBLISH"}},
		}
	}

	t.Run("replies come in order, whether the server knows the scripts or not", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		for range 2 {
			cmds := scripts.RunBatch(ctx, s.Client(t), batch("name"))
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
		scripts.RunBatch(ctx, rdb, batch("name"))
		lost := d.LoseReply("evalsha", 1, redistest.Cut)
		before := calls(ctx, t, s.Client(t), "evalsha")
		for _, cmd := range scripts.RunBatch(ctx, rdb, batch("name")) {
			require.Error(t, cmd.Err())
		}
		<-lost
		require.Equal(t, before+3, calls(ctx, t, s.Client(t), "evalsha"))
	})
}

// The first call is answered with TRYAGAIN, the others are redirected. If go-redis repeated the batch because of the
// first, it would send the others twice at once, and two goroutines would read replies into one command.
// Guarantees: L44.
func TestRunBatch_SendsEachCallOnceWhileASlotMigrates(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.StartCluster(t)
	rdb, slot := cluster.Client(t), cluster.Migrate(t, "{s}")
	s := scripts.NewScript("count", "redis.call('GET', KEYS[2]) return redis.call('INCR', KEYS[1])")
	for _, node := range []*redis.Client{slot.From, slot.To} {
		require.NoError(t, node.ScriptLoad(ctx, s.Source()).Err())
	}
	batch := []scripts.Call{s.Call([]string{"{s}stays", "{s}moved"})}
	moved := []string{"{s}moved"}
	for i := range 20 {
		moved = append(moved, fmt.Sprintf("{s}moved:%d", i))
		batch = append(batch, s.Call([]string{moved[i+1], "{s}moved"}))
	}
	for _, key := range append(moved, "{s}stays") {
		require.NoError(t, slot.From.Do(ctx, slot.Stable()...).Err())
		require.NoError(t, slot.From.Set(ctx, key, 10, 0).Err())
	}
	require.NoError(t, slot.From.Do(ctx, slot.Migrating()...).Err())
	slot.Move(moved...)
	cmds := scripts.RunBatch(ctx, rdb, batch)
	require.True(t, redis.HasErrorPrefix(cmds[0].Err(), "TRYAGAIN"))
	for _, cmd := range cmds[1:] {
		require.NoError(t, cmd.Err())
		require.Equal(t, int64(11), cmd.Val())
	}
}

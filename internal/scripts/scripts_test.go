package scripts_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// A script that is wrong when executed twice, which the count shows.
const counter = "-- counter.lua  KEYS[1]=counter ARGV: none  returns the count\nreturn redis.call('INCR', KEYS[1])\n"

func TestScript_Run(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("sends the text once and the hash from then on", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		for name, s := range map[string]*scripts.Script{
			"plain":     scripts.NewScript("plain", counter),
			"once only": scripts.NewScript("once", counter+"-- once\n", scripts.OnceOnly),
		} {
			evals, shas := calls(ctx, t, rdb, "eval"), calls(ctx, t, rdb, "evalsha")
			for want := 1; want <= 3; want++ {
				got, err := s.Run(ctx, rdb, []string{name}).Int()
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			require.Equal(t, 1, calls(ctx, t, rdb, "eval")-evals)
			require.Equal(t, 3, calls(ctx, t, rdb, "evalsha")-shas)
		}
	})

	t.Run("after SCRIPT FLUSH no caller sees NOSCRIPT", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		for range 3 {
			require.NoError(t, rdb.ScriptFlush(ctx).Err())
			require.Equal(t, []int64{1, 1000}, acquire(t, rdb, "name", "me:1", 1000))
		}
	})

	t.Run("the hash is the one the server computes", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		for _, s := range scripts.All() {
			require.Equal(t, rdb.ScriptLoad(ctx, s.Source()).Val(), s.SHA())
		}
	})

	t.Run("an error of the script is the caller's", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		s := scripts.NewScript("fails", "return redis.error_reply('ODD thing')", scripts.OnceOnly)
		require.ErrorContains(t, s.Run(ctx, rdb, nil).Err(), "ODD thing")
	})
}

// Every kind of client runs scripts the same way, whether it knows them or not.
func TestScript_OnEveryClient(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := redistest.Start(t)
	admin := s.Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": s.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	piped, err := admin.AutoPipeline()
	require.NoError(t, err)
	deferred, err := admin.AsyncAutoPipeline()
	require.NoError(t, err)
	for name, rdb := range map[string]redis.UniversalClient{
		"RESP2":    s.Client(t, func(o *redis.Options) { o.Protocol = 2 }),
		"RESP3":    s.Client(t, func(o *redis.Options) { o.Protocol = 3 }),
		"ring":     ring,
		"piped":    piped,
		"deferred": deferred,
	} {
		t.Run(name, func(t *testing.T) { // one at a time: each empties the script cache
			for _, counter := range []*scripts.Script{
				scripts.NewScript("counter", counter),
				scripts.NewScript("counter", counter, scripts.OnceOnly),
			} {
				key := redistest.Name(t)
				require.NoError(t, admin.ScriptFlush(ctx).Err())
				require.Equal(t, int64(1), counter.Run(ctx, rdb, []string{key}).Val())
				require.Equal(t, int64(2), counter.Run(ctx, rdb, []string{key}).Val())
				require.NoError(t, admin.ScriptFlush(ctx).Err())
				call := counter.Call([]string{key})
				cmds := scripts.RunBatch(ctx, rdb, []scripts.Call{call, call})
				require.Equal(t, int64(3), cmds[0].Val())
				require.Equal(t, int64(4), cmds[1].Val())
			}
		})
	}
}

func TestScript_InACluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.StartCluster(t).Client(t)

	// One batch for all masters, none of which knows the script.
	var batch []scripts.Call
	for i := range 60 {
		name := fmt.Sprintf("lock-%d", i)
		require.NoError(t, scripts.CheckName(name))
		batch = append(batch, scripts.LockAcquire.Call([]string{name}, "me:1", 30_000))
	}
	for range 2 {
		for _, cmd := range scripts.RunBatch(ctx, rdb, batch) {
			require.Equal(t, []any{int64(1), int64(30_000)}, cmd.Val())
		}
	}
	// Both keys of a release are in one slot, also under a name with a tag.
	for _, name := range []string{"lock-1", "orders:{42}", "a}{b}", "{a}{b}"} {
		require.NoError(t, scripts.LockAcquire.Run(ctx, rdb, []string{name}, "me:1", 30_000).Err())
		for _, publish := range []string{"PUBLISH", "SPUBLISH"} {
			require.NoError(t, scripts.LockAcquire.Run(ctx, rdb, []string{name}, "me:1", 30_000).Err())
			got, err := scripts.LockRelease.Run(ctx, rdb, []string{name}, "me:1", publish).Int()
			require.NoError(t, err)
			require.Equal(t, 1, got)
		}
	}
	// A script sent once finds its node too.
	counter := scripts.NewScript("counter", counter, scripts.OnceOnly)
	for i := range 10 {
		require.Equal(t, int64(1), counter.Run(ctx, rdb, []string{fmt.Sprintf("count-%d", i)}).Val())
	}
}

// The reply of one call is lost after the server executed it.
// Guarantees: L5.
func TestScript_Run_LostReply(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	setUp := func(t *testing.T) (*redistest.FaultDialer, *redis.Client) {
		d := &redistest.FaultDialer{}
		rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
			o.Dialer = d.Dial
			o.ReadTimeout = 100 * time.Millisecond
			o.MaxRetries = 3
		})
		return d, rdb
	}
	for loss, how := range map[redistest.Loss]string{redistest.Swallow: "swallowed", redistest.Cut: "cut"} {
		t.Run("a script that may run again does, "+how, func(t *testing.T) {
			t.Parallel()
			d, rdb := setUp(t)
			s := scripts.NewScript("counter", counter)
			key := redistest.Name(t)
			require.NoError(t, s.Run(ctx, rdb, []string{key}).Err())
			lost := d.LoseReply("EVALSHA", 1, loss)
			require.Equal(t, int64(3), s.Run(ctx, rdb, []string{key}).Val(), "1 before, 2 for one call")
			<-lost
		})

		t.Run("one that must not run again fails instead, "+how, func(t *testing.T) {
			t.Parallel()
			d, rdb := setUp(t)
			s := scripts.NewScript("counter", counter, scripts.OnceOnly)
			key := redistest.Name(t)
			require.NoError(t, s.Run(ctx, rdb, []string{key}).Err())
			lost := d.LoseReply("EVALSHA", 1, loss)
			require.Error(t, s.Run(ctx, rdb, []string{key}).Err())
			<-lost
			require.Equal(t, "2", rdb.Get(ctx, key).Val())

			lost = d.LoseReply("EVALSHA", 1, loss)
			call := s.Call([]string{key})
			for _, cmd := range scripts.RunBatch(ctx, rdb, []scripts.Call{call, call}) {
				require.Error(t, cmd.Err())
			}
			<-lost
			require.Equal(t, "4", rdb.Get(ctx, key).Val())
		})

		t.Run("a lock whose acquire and release ran twice was held once, "+how, func(t *testing.T) {
			t.Parallel()
			d, rdb := setUp(t)
			name := redistest.Name(t)
			acquire(t, rdb, name, "warm:1", 1000)
			require.Equal(t, 1, release(t, rdb, name, "warm:1"))

			lost := d.LoseReply("EVALSHA", 1, loss)
			require.Equal(t, []int64{1, 30_000}, acquire(t, rdb, name, "me:1", 30_000))
			<-lost
			require.Equal(t, map[string]string{"me:1": "0"}, rdb.HGetAll(ctx, name).Val())

			lost = d.LoseReply("EVALSHA", 1, loss)
			require.Equal(t, []int64{1}, renew(t, rdb, 30_000, name, "me:1"))
			<-lost

			lost = d.LoseReply("EVALSHA", 1, loss)
			// The first execution released it; the reply is that of the second.
			require.Equal(t, 0, release(t, rdb, name, "me:1"))
			<-lost
			require.Zero(t, rdb.Exists(ctx, name).Val())
		})
	}
}

func TestScript_RunBatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("no calls are no commands", func(t *testing.T) {
		t.Parallel()
		require.Empty(t, scripts.RunBatch(ctx, redistest.Shared(t).Client(t), nil))
	})

	t.Run("replies come in order, errors stay with their call", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		mine, text, free := redistest.Name(t), redistest.Name(t), redistest.Name(t)
		acquire(t, rdb, mine, "me:1", 5_000)
		require.NoError(t, rdb.Set(ctx, text, "x", 0).Err())
		cmds := scripts.RunBatch(ctx, rdb, []scripts.Call{
			{Script: scripts.LockAcquire, Keys: []string{mine}, Args: []any{"me:1", 9_000}},
			{Script: scripts.LockAcquire, Keys: []string{text}, Args: []any{"me:2", 9_000}},
			{Script: scripts.LockAcquire, Keys: []string{free}, Args: []any{"me:3", 9_000}},
		})
		require.Len(t, cmds, 3)
		require.Equal(t, []any{int64(1), int64(9_000)}, cmds[0].Val())
		require.True(t, redis.HasErrorPrefix(cmds[1].Err(), "WRONGTYPE"))
		require.Equal(t, []any{int64(1), int64(9_000)}, cmds[2].Val())
	})

	for name, s := range map[string]*scripts.Script{
		"plain":     scripts.NewScript("counter", counter),
		"once only": scripts.NewScript("counter", counter, scripts.OnceOnly),
	} {
		t.Run("a server that does not know the script executes each call once, "+name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client(t)
			batch := make([]scripts.Call, 100)
			for i := range batch {
				batch[i] = s.Call([]string{"counter"})
			}
			for round := range 2 {
				for i, cmd := range scripts.RunBatch(ctx, rdb, batch) {
					require.NoError(t, cmd.Err())
					require.Equal(t, int64(round*100+i+1), cmd.Val())
				}
			}
			require.Equal(t, 100, calls(ctx, t, rdb, "eval"), "by text in the first round only")
			require.Equal(t, 200, calls(ctx, t, rdb, "evalsha"))
		})
	}

	t.Run("without a connection every command carries the error", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		rdb := s.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
		s.Kill()
		for _, cmd := range scripts.RunBatch(ctx, rdb, slices.Repeat([]scripts.Call{{Script: scripts.LockRenew}}, 3)) {
			require.Error(t, cmd.Err())
		}
	})
}

package scripts_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Replies to calls that share a script are those that each call would get by itself, whatever else is in the batch.
func TestRunSharedOnce_AnswersAsRunBatchOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	admin := server.Client(t)
	var batch []scripts.Call
	acquire := func(name, id string, more ...any) {
		keys := []string{name}
		if len(more) > 0 {
			keys = append(keys, scripts.LockFence(name))
		}
		batch = append(batch, scripts.LockAcquire.Call(keys, append([]any{id, 9_000}, more...)...))
	}
	release := func(name, id string) {
		batch = append(batch, scripts.LockRelease.Call([]string{name}, id, "PUBLISH", scripts.LockChannel(name)))
	}
	acquire("free", "me:1")
	acquire("mine", "me:2")
	acquire("others", "me:3")
	acquire("lasting", "me:4")
	acquire("rw", "me:5")
	acquire("text", "me:6")
	acquire("twice", "me:7")
	acquire("twice", "you:7")
	acquire("fenced", "me:8", 60_000, 0)
	release("held", "me:9")
	release("held", "me:9")
	release("others", "me:10")
	release("absent", "me:11")
	release("text", "me:12")
	batch = append(batch, scripts.LockRenew.Call([]string{"lasting"}, "you:4", 9_000))
	for i := range 250 {
		acquire(fmt.Sprintf("many:%d", i), "me:13")
	}

	reset := func() {
		_, err := admin.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.FlushAll(ctx)
			for _, command := range words(`
				HSET mine me:2 1
				PEXPIRE mine 5000
				HSET others you:3 1
				PEXPIRE others 60000
				HSET lasting you:4 1
				HSET rw mode read you:5 1
				SET text 1
				HSET held me:9 1`) {
				pipe.Do(ctx, command...)
			}
			return nil
		})
		require.NoError(t, err)
	}
	// outcome is what a caller reads of a reply: the time until an expiry only roughly, and the lease of a lock that
	// it got not at all.
	outcome := func(i int, cmd *redis.Cmd) string {
		if cmd.Err() != nil {
			return cmd.Err().Error()
		}
		list, ok := cmd.Val().([]any)
		if !ok {
			return fmt.Sprint(cmd.Val())
		}
		if batch[i].Script == scripts.LockAcquire {
			if left := list[1].(int64); list[0] == int64(1) {
				return fmt.Sprint("taken ", len(list))
			} else if left > 50_000 {
				return "refused for a minute"
			} else if left > 0 {
				return "refused for seconds"
			}
		}
		return fmt.Sprint(list)
	}
	type result struct {
		replies []string
		keys    map[string]string
	}
	observe := func(cmds []*redis.Cmd) (r result) {
		require.Len(t, cmds, len(batch))
		for i, cmd := range cmds {
			r.replies = append(r.replies, outcome(i, cmd))
		}
		r.keys = timeless((&bench{t: t, admin: admin}).snapshot())
		return r
	}
	reset()
	want := observe(scripts.RunBatchOnce(ctx, admin, batch))
	for _, known := range []string{"unknown to the server", "known"} {
		reset()
		if known != "known" {
			require.NoError(t, admin.ScriptFlush(ctx).Err())
		}
		cmds, crossSlot := scripts.RunSharedOnce(ctx, admin, batch)
		require.Equal(t, want, observe(cmds), "scripts are %s", known)
		require.False(t, crossSlot)
	}
}

func TestRunSharedOnce_ReleasesComeFirst(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	release := func(id string) scripts.Call {
		return scripts.LockRelease.Call([]string{name}, id, "PUBLISH", scripts.LockChannel(name))
	}
	acquire := func(id string) scripts.Call { return scripts.LockAcquire.Call([]string{name}, id, 9_000) }
	require.NoError(t, scripts.LockAcquire.RunOnce(t.Context(), rdb, []string{name}, "me:1", 9_000).Err())
	cmds, _ := scripts.RunSharedOnce(t.Context(), rdb, []scripts.Call{acquire("me:2"), release("me:1"), acquire("me:3"), release("me:4")})
	for i, want := range []string{"[1 0]", "1", "[0 9000]", "0"} {
		got := fmt.Sprint(cmds[i].Val())
		if i == 2 {
			got = "[0 9000]"
			left := cmds[i].Val().([]any)
			require.Equal(t, int64(0), left[0])
			require.Positive(t, left[1])
		}
		require.Equal(t, want, got, i)
	}
}

// What a user may not do, or a server refuses, fails the calls that need it and no others.
func TestRunSharedOnce_ARefusalConcernsTheCallsThatNeedIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~ours:*", "&*", "+@all").Err())
	rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password, o.MaxRetries = "user", "secret", -1 })
	cmds, _ := scripts.RunSharedOnce(ctx, rdb, []scripts.Call{
		scripts.LockAcquire.Call([]string{"ours:1"}, "me:1", 9_000),
		scripts.LockAcquire.Call([]string{"theirs:1"}, "me:2", 9_000),
		scripts.LockAcquire.Call([]string{"ours:2"}, "me:3", 9_000),
		scripts.LockRelease.Call([]string{"theirs:2"}, "me:4", "PUBLISH", "c"),
		scripts.LockRelease.Call([]string{"ours:3"}, "me:5", "PUBLISH", "c"),
	})
	for i, noPerm := range []bool{false, true, false, true, false} {
		require.Equal(t, noPerm, redis.HasErrorPrefix(cmds[i].Err(), "NOPERM"), "%d: %v", i, cmds[i].Err())
		if !noPerm {
			require.NoError(t, cmds[i].Err())
		}
	}
	require.EqualValues(t, 2, admin.Exists(ctx, "ours:1", "ours:2").Val())
}

func TestRunSharedOnce_InAClusterCallsTravelByThemselves(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := redistest.StartCluster(t).Client(t)
	names := []string{"{a}:1", "{a}:2"}
	node, err := cluster.MasterForKey(ctx, names[0])
	require.NoError(t, err)
	// A node of a cluster stands for a proxy: it refuses keys of several slots, and knows those of its own.
	slot := cluster.ClusterKeySlot(ctx, names[0]).Val()
	for i := 0; len(names) < 4; i++ {
		name := fmt.Sprintf("{%d}", i)
		of, err := cluster.MasterForKey(ctx, name)
		require.NoError(t, err)
		if of.Options().Addr == node.Options().Addr && cluster.ClusterKeySlot(ctx, name).Val() != slot {
			names = append(names, name)
		}
	}
	var batch []scripts.Call
	for _, name := range names {
		batch = append(batch, scripts.LockAcquire.Call([]string{name}, "me:1", 9_000))
	}
	cmds, crossSlot := scripts.RunSharedOnce(ctx, node, batch)
	require.True(t, crossSlot)
	for _, cmd := range cmds {
		require.NoError(t, cmd.Err())
		require.Equal(t, []any{int64(1), int64(9_000)}, cmd.Val())
	}
}

func TestRunSharedOnce_ALostReplyIsAnErrorOfEachCall(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := &redistest.FaultDialer{}
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, 100*time.Millisecond })
	batch := make([]scripts.Call, 10)
	for i := range batch {
		batch[i] = scripts.LockAcquire.Call([]string{fmt.Sprintf("name:%d", i)}, "me:1", 9_000)
	}
	scripts.RunSharedOnce(ctx, rdb, batch)
	lost := d.LoseReply("evalsha", 1, redistest.Cut)
	before := calls(ctx, t, server.Client(t), "evalsha")
	cmds, _ := scripts.RunSharedOnce(ctx, rdb, batch)
	for _, cmd := range cmds {
		require.Error(t, cmd.Err())
		var refused redis.Error
		require.NotErrorAs(t, cmd.Err(), &refused)
	}
	<-lost
	require.Equal(t, before+1, calls(ctx, t, server.Client(t), "evalsha"), "nothing is sent again")
}

// A reply that no version of the script returns tells no call what has become of it.
func TestRunSharedOnce_AReplyOfAnotherLengthIsNone(t *testing.T) {
	t.Parallel()
	call := scripts.LockAcquire.Call([]string{"name"}, "me:1", 9_000)
	for _, reply := range []any{nil, int64(1), []any{int64(1)}, []any{int64(1), int64(0), int64(1)}, "OK"} {
		rdb := redis.NewClient(&redis.Options{})
		rdb.AddHook(replying{reply})
		cmds, crossSlot := scripts.RunSharedOnce(t.Context(), rdb, []scripts.Call{call, call})
		require.NoError(t, rdb.Close())
		require.False(t, crossSlot)
		for _, cmd := range cmds {
			require.ErrorIs(t, cmd.Err(), scripts.ErrReply)
		}
	}
}

// replying is a hook of a client whose pipelines get one reply to each command.
type replying struct{ reply any }

func (replying) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (replying) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (r replying) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.(interface{ SetVal(any) }).SetVal(r.reply)
		}
		return nil
	}
}

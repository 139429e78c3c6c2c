package scripts_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Replies to calls that share a script are those that each call would get by itself, whatever else is in the batch.
func TestRunShared_AnswersAsRunBatch(t *testing.T) {
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
		batch = append(batch, scripts.LockRelease.Call([]string{name}, id, "PUBLISH"))
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
	want := observe(scripts.RunBatch(ctx, admin, batch))
	for _, known := range []string{"unknown to the server", "known"} {
		reset()
		if known != "known" {
			require.NoError(t, admin.ScriptFlush(ctx).Err())
		}
		cmds, crossSlot := scripts.RunShared(ctx, admin, batch)
		require.Equal(t, want, observe(cmds), "scripts are %s", known)
		require.False(t, crossSlot)
	}
}

// The same of permits. Tokens and instants differ by when the calls were made.
func TestRunShared_AnswersPermitsAsRunBatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	admin := server.Client(t)
	id := func(i int) string { return fmt.Sprintf("%016d", i) }
	keys := func(name string) []string { return []string{name, name + ":leases", name + ":fence", name + ":other"} }
	var batch []scripts.Call
	declare := func(name string, idle, declared int, ids ...string) {
		args := []any{"PUBLISH", "c", 60_000, idle, len(ids), declared, "", 30_000, len(ids)}
		for _, id := range ids {
			args = append(args, id)
		}
		batch = append(batch, scripts.PermitAcquire.Call(keys(name), args...))
	}
	acquire := func(name string, idle int, ids ...string) { declare(name, idle, 0, ids...) }
	release := func(name string, allOrNone, idle int, ids ...string) {
		args := []any{"PUBLISH", "c", allOrNone, idle}
		for _, id := range ids {
			args = append(args, id)
		}
		batch = append(batch, scripts.PermitRelease.Call(keys(name)[:2], args...))
	}
	for i := range 4 {
		acquire("three", 0, id(i))
	}
	for i, name := range []string{"expires", "hour", "ahead", "bad fence", "fence of a kind", "leases of a kind", "idle", "held before"} {
		idle := 0
		if name == "idle" {
			idle = 600_000
		}
		acquire(name, idle, id(10+i))
	}
	for i, name := range []string{"none left", "never set", "text", "kind", "below"} {
		acquire(name, 0, id(20+i))
		release(name, 0, 0, id(20+i))
	}
	for i, name := range []string{"never set, declared", "declared", "declared", "another kind, declared"} {
		declare(name, 0, 5, id(25+i))
	}
	acquire("two", 0, id(30), id(31))
	acquire("two", 0, id(32))
	for range 2 {
		release("held", 0, 0, id(40))
	}
	release("held", 0, 0, id(41), id(42))
	release("held", 1, 0, id(43))
	release("held", 0, 600_000, id(44))
	release("counter gone", 0, 0, id(40))
	for i := range 250 {
		acquire(fmt.Sprint("many:", i), 0, id(100+i))
	}

	reset := func() {
		now := admin.Time(ctx).Val()
		_, err := admin.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.FlushAll(ctx)
			for _, name := range []string{"three", "hour", "ahead", "bad fence", "fence of a kind", "leases of a kind", "idle", "held before", "two", "held", "declared", "another kind, declared:other"} {
				pipe.Set(ctx, name, 3, 0)
			}
			for i := range 250 {
				pipe.Set(ctx, fmt.Sprint("many:", i), 3, 0)
			}
			pipe.Set(ctx, "expires", 3, time.Hour)
			pipe.Set(ctx, "none left", 0, 0)
			pipe.Set(ctx, "below", -2, 0)
			pipe.Set(ctx, "text", "x", 0)
			pipe.HSet(ctx, "kind", "a", 1)
			pipe.Set(ctx, "hour:fence", now.UnixMicro()-1000, time.Hour)
			pipe.Set(ctx, "ahead:fence", now.Add(20*time.Hour).UnixMicro(), time.Hour)
			pipe.Set(ctx, "bad fence:fence", "x", time.Hour)
			pipe.HSet(ctx, "fence of a kind:fence", "a", 1)
			pipe.Set(ctx, "leases of a kind:leases", 1, 0)
			pipe.ZAdd(ctx, "held before:leases", redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: id(17)})
			for _, name := range []string{"held", "counter gone"} {
				for i := 40; i < 45; i++ {
					pipe.ZAdd(ctx, name+":leases", redis.Z{Score: float64(now.Add(time.Minute).UnixMilli()), Member: id(i)})
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	outcome := func(cmd *redis.Cmd) string {
		if cmd.Err() != nil {
			return cmd.Err().Error()
		}
		list, ok := cmd.Val().([]any)
		require.True(t, ok, cmd.Val())
		for i, v := range list {
			if v.(int64) > 1000 {
				list[i] = "later"
			}
		}
		return fmt.Sprint(list)
	}
	observe := func(cmds []*redis.Cmd) (replies []string, left map[string]string) {
		require.Len(t, cmds, len(batch))
		last := int64(0)
		for _, cmd := range cmds[:3] { // of one semaphore
			token := cmd.Val().([]any)[4].(int64)
			require.Greater(t, token, last)
			last = token
		}
		for _, cmd := range cmds {
			replies = append(replies, outcome(cmd))
		}
		return replies, timeless((&bench{t: t, admin: admin}).snapshot())
	}
	reset()
	replies, left := observe(scripts.RunBatch(ctx, admin, batch))
	require.Equal(t, "[1 0 0 -1 later]", replies[0])
	for _, known := range []string{"unknown to the server", "known"} {
		reset()
		if known != "known" {
			require.NoError(t, admin.ScriptFlush(ctx).Err())
		}
		before := executions(t, admin)
		cmds, crossSlot := scripts.RunShared(ctx, admin, batch)
		require.False(t, crossSlot)
		require.Less(t, executions(t, admin)-before, 40, "they shared scripts")
		sharedReplies, sharedLeft := observe(cmds)
		require.Equal(t, replies, sharedReplies, "scripts are %s", known)
		require.Equal(t, left, sharedLeft, "scripts are %s", known)
	}
}

// The same of counting semaphores. Calls are repeated with the same sequence numbers, as after a lost reply.
func TestRunShared_AnswersCountingAsRunBatch(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	admin := redistest.Start(t).Client(t)
	const seq, many = 7, 250
	var batch []scripts.Call
	acquireAs := func(name string, seq, confirmed, idle int, n ...any) {
		keys := []string{name, name + ":acquiring"}
		if idle > 0 || confirmed < seq-1 {
			keys = append(keys, name+":origin")
		}
		args := []any{seq, confirmed, 60_000, "PUBLISH", "c:" + name, idle, ""}
		batch = append(batch, scripts.SemAcquire.Call(keys, append(args, n...)...))
	}
	acquire := func(name string, n ...any) { acquireAs(name, seq, seq-1, 0, n...) }
	release := func(name string, n, ifExists, maximum int) {
		args := []any{60_000, "PUBLISH", "c:" + name, 0, "", seq, n, ifExists, maximum}
		batch = append(batch, scripts.SemRelease.Call([]string{name, name + ":releasing"}, args...))
	}
	for i := range 4 {
		acquireAs("one by one", seq+i, seq+i-1, 0, 1)
	}
	acquire("two requests", 1, 1)
	acquire("too many", 4)
	acquireAs("idle", seq, seq-1, 600_000, 1)
	acquireAs("not confirmed", seq, seq-2, 0, 1)
	for _, name := range []string{"never set", "none free", "below", "text", "kind", "calls of a kind", "no calls", "repeated", "stale", "kept"} {
		acquire(name, 1)
		release("released, "+name, 1, 0, 0)
	}
	release("never set, if it exists", 2, 1, 0)
	release("exists", 2, 1, 0)
	release("exists, none added", 0, 1, 0)
	release("up to four", 1, 0, 4)
	release("above three", 1, 0, 3)
	for i := range many {
		acquire(fmt.Sprint("many:", i), 2)
		release(fmt.Sprint("many released:", i), 2, 0, 0)
	}

	reset := func() {
		_, err := admin.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.FlushAll(ctx)
			for _, name := range []string{"one by one", "two requests", "too many", "idle", "not confirmed", "exists", "exists, none added", "up to four", "above three"} {
				pipe.Set(ctx, name, 3, 0)
			}
			for _, released := range []string{"", "released, "} {
				for _, name := range []string{"calls of a kind", "no calls", "repeated", "stale", "kept"} {
					pipe.Set(ctx, released+name, 3, 0)
				}
				pipe.Set(ctx, released+"none free", 0, 0)
				pipe.Set(ctx, released+"below", -2, 0)
				pipe.Set(ctx, released+"text", "x", 0)
				pipe.HSet(ctx, released+"kind", "a", 1)
				for _, calls := range []string{":acquiring", ":releasing"} {
					pipe.HSet(ctx, released+"calls of a kind"+calls, "a", 1)
					pipe.Set(ctx, released+"no calls"+calls, "x", 0)
				}
			}
			pipe.Set(ctx, "not confirmed:acquiring", "6 1 1", time.Minute)
			pipe.Set(ctx, "repeated:acquiring", "7 1 1", time.Minute)
			pipe.Set(ctx, "stale:acquiring", "9 1 1", time.Minute)
			pipe.Set(ctx, "released, repeated:releasing", "7 7:1", time.Minute)
			pipe.Set(ctx, "released, stale:releasing", "9 9:1", time.Minute)
			later := admin.Time(ctx).Val().Add(time.Minute).UnixMilli()
			pipe.Set(ctx, "kept:kept", fmt.Sprint(later, " 3 3 a:1"), time.Minute)
			for i := range many {
				pipe.Set(ctx, fmt.Sprint("many:", i), 3, time.Hour)
				pipe.Set(ctx, fmt.Sprint("many released:", i), 3, time.Hour)
			}
			return nil
		})
		require.NoError(t, err)
	}
	observe := func(cmds []*redis.Cmd) (replies []string) {
		require.Len(t, cmds, len(batch))
		for i, cmd := range cmds {
			reply := fmt.Sprint(cmd.Val(), cmd.Err())
			if batch[i].Keys[0] == "kept" {
				reply = fmt.Sprint(cmd.Val().([]any)[:3])
			}
			replies = append(replies, reply)
		}
		return replies
	}
	type results struct {
		first, repeated []string
		keys            map[string]string
	}
	twice := func(run func() []*redis.Cmd) (r results) {
		reset()
		r.first, r.repeated = observe(run()), observe(run())
		r.keys = timeless((&bench{t: t, admin: admin}).snapshot())
		return r
	}
	want := twice(func() []*redis.Cmd { return scripts.RunBatch(ctx, admin, batch) })
	require.Equal(t, "[1 1 2 -1] <nil>", want.first[0])
	require.Equal(t, "string 1 expires=true", want.keys["many:0"])
	for _, known := range []string{"unknown to the server", "known"} {
		if known != "known" {
			require.NoError(t, admin.ScriptFlush(ctx).Err())
		}
		ran := 0
		got := twice(func() []*redis.Cmd {
			before := executions(t, admin)
			cmds, crossSlot := scripts.RunShared(ctx, admin, batch)
			require.False(t, crossSlot)
			if ran++; ran == 1 {
				require.Less(t, executions(t, admin)-before, 60, "they shared scripts, %s", known)
			}
			return cmds
		})
		require.Equal(t, want, got, "scripts are %s", known)
	}
}

// executions is how many scripts the server has executed.
func executions(t *testing.T, rdb *redis.Client) (n int) {
	t.Helper()
	for line := range strings.Lines(rdb.Info(t.Context(), "commandstats").Val()) {
		for _, command := range []string{"eval", "evalsha"} {
			if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
				var of int
				_, err := fmt.Sscanf(rest, "%d", &of)
				require.NoError(t, err)
				n += of
			}
		}
	}
	return n
}

func TestRunShared_ReleasesComeFirst(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t) // knows none of the scripts, or a release might be sent again by text
	name := redistest.Name(t)
	release := func(id string) scripts.Call {
		return scripts.LockRelease.Call([]string{name}, id, "PUBLISH")
	}
	acquire := func(id string) scripts.Call { return scripts.LockAcquire.Call([]string{name}, id, 9_000) }
	require.NoError(t, scripts.LockAcquire.RunOnce(t.Context(), rdb, []string{name}, "me:1", 9_000).Err())
	cmds, _ := scripts.RunShared(t.Context(), rdb, []scripts.Call{acquire("me:2"), release("me:1"), acquire("me:3"), release("me:4")})
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

// Calls share an execution only with those that have the same arguments in common: each lock has the lease it asked for,
// however many there are. Calls in between that share none keep nobody apart.
func TestRunShared_LeasesDiffer(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Start(t).Client(t), redistest.Name(t)
	for _, kinds := range []int{20, 2} {
		var batch []scripts.Call
		var leases []int
		for i := range 3 * 20 {
			lease := 1000 * (5 + 3*(i%kinds))
			leases = append(leases, lease)
			batch = append(batch, scripts.LockAcquire.Call([]string{fmt.Sprint(name, kinds, ":", i)}, "me:1", lease))
			leases = append(leases, 0)
			batch = append(batch, scripts.LockAcquire.Call([]string{name + "other"}, "me:1", 9_000, 0, 0))
		}
		before := executions(t, rdb)
		cmds, _ := scripts.RunShared(t.Context(), rdb, batch)
		if kinds == 2 {
			require.LessOrEqual(t, executions(t, rdb)-before, 60+2*2, "the first time Redis does not know the shared script")
		}
		for i, lease := range leases {
			require.NoError(t, cmds[i].Err())
			if lease > 0 {
				left := rdb.PTTL(t.Context(), batch[i].Keys[0]).Val()
				require.LessOrEqual(t, left, time.Duration(lease)*time.Millisecond, i)
				require.Greater(t, left, time.Duration(lease-3_000)*time.Millisecond, i)
			}
		}
	}
}

// What a user may not do, or a server refuses, fails the calls that need it and no others.
func TestRunShared_ARefusalConcernsTheCallsThatNeedIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "user", "on", ">secret", "~ours:*", "&*", "+@all").Err())
	rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password, o.MaxRetries = "user", "secret", -1 })
	cmds, _ := scripts.RunShared(ctx, rdb, []scripts.Call{
		scripts.LockAcquire.Call([]string{"ours:1"}, "me:1", 9_000),
		scripts.LockAcquire.Call([]string{"theirs:1"}, "me:2", 9_000),
		scripts.LockAcquire.Call([]string{"ours:2"}, "me:3", 9_000),
		scripts.LockRelease.Call([]string{"theirs:2"}, "me:4", "PUBLISH"),
		scripts.LockRelease.Call([]string{"ours:3"}, "me:5", "PUBLISH"),
	})
	for i, noPerm := range []bool{false, true, false, true, false} {
		require.Equal(t, noPerm, redis.HasErrorPrefix(cmds[i].Err(), "NOPERM"), "%d: %v", i, cmds[i].Err())
		if !noPerm {
			require.NoError(t, cmds[i].Err())
		}
	}
	require.EqualValues(t, 2, admin.Exists(ctx, "ours:1", "ours:2").Val())
}

func TestRunShared_InAClusterCallsTravelByThemselves(t *testing.T) {
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
	cmds, crossSlot := scripts.RunShared(ctx, node, batch)
	require.True(t, crossSlot)
	for _, cmd := range cmds {
		require.NoError(t, cmd.Err())
		require.Equal(t, []any{int64(1), int64(9_000)}, cmd.Val())
	}
}

func TestRunShared_ALostReplyIsAnErrorOfEachCall(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := &redistest.FaultDialer{}
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, 100*time.Millisecond })
	batch := make([]scripts.Call, 10)
	for i := range batch {
		batch[i] = scripts.LockAcquire.Call([]string{fmt.Sprintf("name:%d", i)}, "me:1", 9_000)
	}
	scripts.RunShared(ctx, rdb, batch)
	lost := d.LoseReply("evalsha", 1, redistest.Cut)
	before := calls(ctx, t, server.Client(t), "evalsha")
	cmds, _ := scripts.RunShared(ctx, rdb, batch)
	for _, cmd := range cmds {
		require.Error(t, cmd.Err())
		var refused redis.Error
		require.NotErrorAs(t, cmd.Err(), &refused)
	}
	<-lost
	require.Equal(t, before+1, calls(ctx, t, server.Client(t), "evalsha"), "nothing is sent again")
}

// A reply that no version of the script returns tells no call what has become of it.
func TestRunShared_AReplyOfAnotherLengthIsNone(t *testing.T) {
	t.Parallel()
	call := scripts.LockAcquire.Call([]string{"name"}, "me:1", 9_000)
	for _, reply := range []any{nil, int64(1), []any{int64(1)}, []any{int64(1), int64(0), int64(1)}, "OK"} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		rdb.AddHook(replying{reply})
		cmds, crossSlot := scripts.RunShared(t.Context(), rdb, []scripts.Call{call, call})
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

// The same of rate limits. A call is executed once, because grants have no ids: together, or by itself.
func TestRunShared_DecidesEachRequestOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	admin := server.Client(t)
	var batch []scripts.Call
	ask := func(name string, more ...any) {
		args := append([]any{1, int64(100e9), 0, 100_001, 1, int64(1e9), 0, 1}, more...) // of 100 in as many thousand s
		batch = append(batch, scripts.RateGCRA.Call([]string{name}, args...))
	}
	for i := range 250 {
		ask(fmt.Sprint("many:", i))
	}
	for range 3 {
		ask("twice")
	}
	for _, name := range []string{"kind", "later", "places"} {
		ask(name)
	}
	ask("apart", "", 0, 0)
	ask("marked")
	batch[len(batch)-1].Alone = true

	used := func(name string) int64 {
		text, _, _ := strings.Cut(admin.Get(ctx, name).Val(), ":")
		us, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return (us - admin.Time(ctx).Val().UnixMicro() + 999_999_999) / 1_000_000_000
	}
	for _, known := range []string{"unknown to the server", "known"} {
		require.NoError(t, admin.FlushAll(ctx).Err())
		if known != "known" {
			require.NoError(t, admin.ScriptFlush(ctx).Err())
		}
		require.NoError(t, admin.HSet(ctx, "kind", "a", 1).Err())
		require.NoError(t, admin.Set(ctx, "later", "9:of a later version", time.Hour).Err())
		soon := admin.Time(ctx).Val().UnixMicro() + 3_000_000_000
		require.NoError(t, admin.Set(ctx, "places", fmt.Sprintf("%d@7:0:%d::1:100000000000:0:0:0:1000000000:0:0", soon, soon), time.Hour).Err())
		before := executions(t, admin)
		cmds, crossSlot := scripts.RunShared(ctx, admin, batch)
		require.False(t, crossSlot)
		require.LessOrEqual(t, executions(t, admin)-before, 2*(3+2)+3, "they shared scripts, %s", known)
		for i, cmd := range cmds {
			switch name := batch[i].Keys[0]; name {
			case "kind":
				require.True(t, redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE"), cmd.Err())
			case "later":
				require.Equal(t, int64(0), cmd.Val().([]any)[4])
			case "places":
				require.Equal(t, int64(1), cmd.Val().([]any)[4])
				require.Len(t, cmd.Val(), 7)
			default:
				require.Equal(t, int64(1), cmd.Val().([]any)[4])
				want := int64(1)
				if name == "twice" {
					want = 3
				}
				require.Equal(t, want, used(name), name)
			}
		}
	}
}

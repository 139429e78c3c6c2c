package main_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// newQueue returns a queue that nobody serves.
func newQueue(t *testing.T, rdb redis.UniversalClient, name string) *delay.Queue {
	t.Helper()
	c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c.Queue(name)
}

// scheduleHourly schedules tasks, the first of which was due an hour ago.
func scheduleHourly(t *testing.T, q *delay.Queue, tasks int) {
	t.Helper()
	for i := range tasks {
		due := time.Now().Add(time.Duration(i-1) * time.Hour)
		require.NoError(t, q.ScheduleAt(t.Context(), fmt.Sprint("order-", i), due, nil))
	}
}

func TestTasks_TellsWhatIsOverdueAndWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	url := "redis://" + redistest.Shared(t).Addr()
	scheduleHourly(t, newQueue(t, rdb, name), 150)
	text := must(t, url, "tasks", name)
	require.Regexp(t, `150 pending \([12] overdue\), 0 claimed, 0 failed`, text) // order-1 is due now
	require.Contains(t, text, "listening  0 ")
	require.Regexp(t, `pending +order-0 +overdue by 1h\S* +0 bytes\n`, text)
	require.Regexp(t, `pending +order-99 +due in `, text)
	require.NotContains(t, text, "order-100")
	require.Contains(t, text, "and 50 more pending; see --rows")
	text = must(t, url, "tasks", "--rows", "150", name)
	require.Contains(t, text, "order-149")
	require.NotContains(t, text, "more")
	text = must(t, url, "inspect", name)
	require.Regexp(t, `next +overdue by 1h`, text)
	require.NotContains(t, text, "order-")
}

// The payloads stay in Redis.
func TestTasks_ReadsNoPayloads(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	q, payload := newQueue(t, rdb, "orders"), make([]byte, 200<<10)
	for i := range 250 {
		require.NoError(t, q.Schedule(t.Context(), fmt.Sprint("order-", i), ever, payload))
	}
	sent := func() int {
		stats, err := rdb.InfoMap(t.Context(), "stats").Result()
		require.NoError(t, err)
		n, err := strconv.Atoi(stats["Stats"]["total_net_output_bytes"])
		require.NoError(t, err)
		return n
	}
	before := sent()
	text := must(t, "redis://"+server.Addr(), "tasks", "--rows", "250", "orders")
	require.Equal(t, 250, strings.Count(text, "204800 bytes"))
	require.Less(t, sent()-before, 100_000)
}

func TestTasks_OfACluster(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster, name := redistest.SharedCluster(t), redistest.Name(t)
	scheduleHourly(t, newQueue(t, cluster.Client(t), name), 150)
	url := "redis://" + cluster.Masters[0].Addr() + "?addr=" + cluster.Masters[1].Addr()
	text := must(t, url, "tasks", "--rows", "150", name)
	require.Regexp(t, `pending +order-149 +due in \S+ +0 bytes\n`, text)
}

// A long id widens no row. JSON has the whole id.
func TestTasks_CutsALongIDInTheTable(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	url := "redis://" + redistest.Shared(t).Addr()
	q := newQueue(t, rdb, name)
	ids := []string{"short", strings.Repeat("é", 64), strings.Repeat("é", 65), strings.Repeat("\x00", delay.MaxID)}
	for _, id := range ids {
		require.NoError(t, q.Schedule(t.Context(), id, ever, nil))
	}
	text := must(t, url, "tasks", name)
	for line := range strings.Lines(text) {
		require.Less(t, len([]rune(line)), 120)
	}
	require.Contains(t, text, ids[1]+"  ")
	require.Contains(t, text, strings.Repeat("é", 63)+"…  ")
	require.Contains(t, text, `"\x00\x00`)
	require.NotContains(t, text, ids[2])
	var listed []string
	for _, one := range tasksOf(t, url, name).Tasks {
		listed = append(listed, one.ID)
	}
	require.ElementsMatch(t, ids, listed)
}

// queueTasks are the tasks of a queue as JSON shows them.
type queueTasks struct {
	Pending, Overdue, Claimed, Failed int
	Tasks                             []struct {
		ID, Phase, Reason string
		Cancelled         bool
	}
}

func tasksOf(t *testing.T, url, name string) queueTasks {
	t.Helper()
	var read struct{ Objects []struct{ Queue queueTasks } }
	require.NoError(t, json.Unmarshal([]byte(must(t, url, "tasks", "--json", name)), &read))
	require.Len(t, read.Objects, 1)
	return read.Objects[0].Queue
}

func TestTasks_MarksAClaimedTaskThatIsCancelled(t *testing.T) {
	t.Parallel()
	s := startService(t)
	cancelled, err := newQueue(t, s.rdb, "orders").Cancel(t.Context(), "order-5") // the one after it
	require.NoError(t, err)
	require.True(t, cancelled)
	require.Regexp(t, `claimed +order-5 +lease \S+ +13 bytes +cancelled\n`, must(t, s.url, "tasks", "orders"))
	for _, one := range tasksOf(t, s.url, "orders").Tasks {
		require.Equal(t, one.ID == "order-5", one.Cancelled, one.ID)
	}
}

// A task that waits after a lost lease is in Redis beside the claimed ones, and is pending. The queue is written by the
// test: a process that served it would at once go on with the tasks whose wait is over.
func TestTasks_OfLostLeases(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	rdb, url := server.Client(t), "redis://"+server.Addr()
	ctx, now := t.Context(), time.Now().UnixMicro()
	add := func(part, id, attempt string, at any) {
		t.Helper()
		key := "{" + name + "}:delay:"
		require.NoError(t, rdb.Do(ctx, "ZADD", key+part, at, id).Err())
		require.NoError(t, rdb.HSet(ctx, key+"tasks", id, "::close").Err())
		require.NoError(t, rdb.HSet(ctx, key+"attempts", id, attempt).Err())
	}
	for i := range 300 { // before and after the one that is claimed
		add("running", fmt.Sprint("lost-", i), fmt.Sprint("0:1:7@", now, ":"), fmt.Sprint(now+time.Hour.Microseconds()*int64(i-1), ".5"))
	}
	add("running", "order-5", fmt.Sprint("0:0:7@", now), now+2*time.Hour.Microseconds())
	add("failed", "lost-too-often", "2:25:7:", now-time.Minute.Microseconds())
	add("failed", "order-3", "1:0:7", now)
	add("failed", "order-4", "1:0:7!no\n"+strings.Repeat("x", 70), now)
	queue := newQueue(t, rdb, name)
	require.NoError(t, queue.Schedule(ctx, "order-7", 30*time.Minute, nil))
	require.NoError(t, queue.Schedule(ctx, "order-9", time.Hour, nil))
	text := must(t, url, "tasks", name)
	require.Regexp(t, `302 pending \([12] overdue\), 1 claimed, 3 failed`, text)
	require.Regexp(t, `next +overdue by 1h`, text)
	require.Regexp(t, `claimed +order-5 `, text)
	require.Regexp(t, `pending +lost-0 +overdue by 1h\S* +5 bytes +1 lost lease\n`, text)
	require.Regexp(t, `pending +order-9 `, text, "in the order of time")
	require.Contains(t, text, "and 202 more pending")
	require.Regexp(t, `failed +lost-too-often +failed \S+ ago +5 bytes +lost too often, 2 failures, 25 lost leases\n`, text)
	require.Regexp(t, `failed +order-3 +failed \S+ ago +5 bytes +exhausted, 1 failure\n`, text)
	require.Regexp(t, `failed +order-4 +failed \S+ ago +5 bytes +exhausted, 1 failure +"no\\nx{58}…\n`, text)
	require.Contains(t, must(t, url, "inspect", name), "1 claimed")
}

// A task that ends while the tool reads is left out.
func TestTasks_OmitsATaskThatHasEnded(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	scheduleHourly(t, newQueue(t, rdb, name), 2)
	require.NoError(t, rdb.HDel(t.Context(), "{"+name+"}:delay:tasks", "order-1").Err())
	text := must(t, "redis://"+redistest.Shared(t).Addr(), "tasks", name)
	require.Contains(t, text, "order-0")
	require.NotContains(t, text, "order-1")
}

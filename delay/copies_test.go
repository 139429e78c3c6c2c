package delay_test

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// process calls the scripts of a queue as one process does, with numbers that the test chooses.
type process struct {
	t    *testing.T
	rdb  *redis.Client
	name string
	id   string

	back  time.Duration // how far the clock of Redis is set back
	at    time.Time     // at which the clock of Redis stands still, if it is not zero
	lease time.Duration // 0 means redistest.SafeLease
	kept  int           // failed tasks that are kept; 0 means 100
	busy  int           // workers; all others are free
	lost  int           // losses with which a task fails; 0 means 3

	replaced *strings.Replacer // of what stands in the scripts, or nil

	next    time.Duration // until the next event, of the last call of work
	read    int64         // ends of attempts that the last call has read
	careful bool          // likewise
	reports string        // likewise
	overdue time.Duration // the first of the tasks that are left, likewise; negative if it is not
}

func newProcess(t *testing.T) *process {
	t.Helper()
	return &process{t: t, rdb: redistest.Shared(t).Client(t), name: redistest.Name(t), id: "one"}
}

// other returns another process of the queue.
func (p *process) other() *process {
	other := *p
	other.id += "'"
	return &other
}

func (p *process) key(suffix string) string { return scripts.DelayKey(p.name, suffix) }

func (p *process) keys(more ...string) (keys []string) {
	for _, suffix := range append([]string{"due", "tasks", "attempts", "running", "later", "failed"}, more...) {
		keys = append(keys, p.key(suffix))
	}
	return keys
}

// tasks returns the names of the keys of the queue beside records and the last token.
func (p *process) tasks() (left []string) {
	p.t.Helper()
	for _, key := range p.rdb.Keys(p.t.Context(), p.key("*")).Val() {
		if suffix := strings.TrimPrefix(key, p.key("")); !strings.Contains(suffix, ":") && suffix != "token" {
			left = append(left, suffix)
		}
	}
	return left
}

// source returns the text of a script whose clock may be set back.
func (p *process) source(s *scripts.Script) string {
	const clock = "return time[1] * 1000000 + time[2]"
	require.Equal(p.t, 1, strings.Count(s.Source(), clock), "%s reads the clock", s.Name())
	if p.replaced != nil {
		return p.replaced.Replace(s.Source())
	}
	if !p.at.IsZero() {
		return strings.Replace(s.Source(), clock, fmt.Sprint("return ", p.at.UnixMicro()), 1)
	}
	return strings.Replace(s.Source(), clock, fmt.Sprint(clock, " - ", p.back.Microseconds()), 1)
}

// edit makes requests of six words each, and returns the answers.
func (p *process) edit(number int, requests ...any) []int64 {
	p.t.Helper()
	require.Zero(p.t, len(requests)%6)
	args := append([]any{number, 600_000, "PUBLISH", scripts.DelayChannel(p.name)}, requests...)
	answers, err := p.rdb.Eval(p.t.Context(), p.source(scripts.DelayEdit), p.keys("edits:"+p.id, "waiting", "paused"), args...).Int64Slice()
	require.NoError(p.t, err)
	return answers
}

// due returns the instant at which the task "a" is due, in us.
func (p *process) due() int64 {
	p.t.Helper()
	return int64(p.rdb.ZScore(p.t.Context(), p.key("due"), "a").Val())
}

func schedule(id string, in time.Duration, payload string) []any {
	return []any{"schedule", id, in.Microseconds(), "replace", 0, ":" + payload}
}

func request(verb, id string) []any { return []any{verb, id, "", "", "", ""} }

// claimedTask is a task of the reply of delay_work.
type claimedTask struct {
	id, text         string
	wait             time.Duration
	failures, losses int64
	token            int64
	begun            bool
}

// work claims up to wanted tasks, and records ends of four words each.
func (p *process) work(number, wanted int, ends ...any) (recorded int64, found []claimedTask) {
	p.t.Helper()
	reply, err := p.tryWork(number, wanted, ends...).Slice()
	require.NoError(p.t, err)
	p.next = time.Duration(reply[0].(int64) * 1000)
	p.read, p.careful, p.reports = reply[2].(int64), reply[3] == int64(1), reply[4].(string)
	p.overdue = -time.Duration(reply[5].(int64) * 1000)
	for fields := reply[9:]; len(fields) > 0; fields = fields[3:] {
		a := claimedTask{id: fields[0].(string), text: fields[1].(string), begun: int64(len(found)) < reply[8].(int64)}
		var due int64
		_, err := fmt.Sscanf(fields[2].(string), "%d:%d:%d@%d", &a.failures, &a.losses, &a.token, &due)
		require.NoError(p.t, err)
		require.Equal(p.t, fields[2], fmt.Sprintf("%d:%d:%d@%d", a.failures, a.losses, a.token, due))
		a.wait = time.Duration(1000 * (due - reply[7].(int64)))
		found = append(found, a)
	}
	return reply[1].(int64), found
}

// tryWork calls delay_work.
func (p *process) tryWork(number, wanted int, ends ...any) *redis.Cmd {
	p.t.Helper()
	require.Zero(p.t, len(ends)%4)
	args := append([]any{
		number, 600_000, cmp.Or(p.lease, redistest.SafeLease).Microseconds(), wanted, 5_000, cmp.Or(p.lost, 3), cmp.Or(p.kept, 100),
		time.Hour.Microseconds(), 86_400_000, "PUBLISH", scripts.DelayChannel(p.name), max(0, wanted-p.busy), 2, "1",
		"", 0, "",
	}, ends...)
	return p.rdb.Eval(p.t.Context(), p.source(scripts.DelayWork), p.keys("claims:"+p.id, "token", "waiting", "paused"), args...)
}

// renew renews the lease of an attempt, in us.
func (p *process) renew(a claimedTask, lease any) []int64 {
	p.t.Helper()
	keys := []string{p.key("running"), p.key("attempts")}
	renewed, err := p.rdb.Eval(p.t.Context(), p.source(scripts.DelayRenew), keys, a.id, a.token, lease).Int64Slice()
	require.NoError(p.t, err)
	return renewed
}

// phase returns the phase of a task.
func (p *process) phase(id string) string {
	p.t.Helper()
	reply, err := p.rdb.Eval(p.t.Context(), p.source(scripts.DelayState), p.keys("paused"), id).Slice()
	require.NoError(p.t, err)
	return reply[2].(string)
}

// pending returns the ids of PendingTasks.
func (p *process) pending() (ids []string) {
	p.t.Helper()
	for s, err := range newClient(p.t, p.rdb).Queue(p.name).PendingTasks(p.t.Context()) {
		require.NoError(p.t, err)
		ids = append(ids, s.ID)
	}
	return ids
}

// claim claims the one task that is due.
func (p *process) claim(number int) claimedTask {
	p.t.Helper()
	_, found := p.work(number, 10)
	require.Len(p.t, found, 1)
	return found[0]
}

// claimAfterPause finds that the lease of a task has ended, and claims it after its pause.
func (p *process) claimAfterPause(number int) claimedTask {
	p.t.Helper()
	_, found := p.work(number, 10)
	require.Empty(p.t, found)
	p.back -= 5 * time.Minute
	return p.claim(number + 1)
}

// begin tells that a task has begun.
func (p *process) begin(number int, task claimedTask) {
	p.t.Helper()
	_, found := p.work(number, 0, "begun", task.id, task.token, "")
	require.Empty(p.t, found)
}

// end records the end of an attempt.
func (p *process) end(number int, how string, task claimedTask, more ...any) {
	p.t.Helper()
	recorded, found := p.work(number, 0, how, task.id, task.token, append(more, "0")[0])
	require.EqualValues(p.t, 1, recorded)
	require.Empty(p.t, found)
}

// endLease lets the lease of a claimed task end, or its pause after that. A call that follows finds it.
func (p *process) endLease(id string) {
	p.t.Helper()
	ends := p.rdb.ZScore(p.t.Context(), p.key("running"), id).Val()
	_, half := math.Modf(ends)
	require.NoError(p.t, p.rdb.ZAddXX(p.t.Context(), p.key("running"), redis.Z{Score: 1 + half, Member: id}).Err())
}

// loseLease lets the lease of a claimed task end, and the pause that follows if it has begun.
func (p *process) loseLease(id string) {
	p.t.Helper()
	p.endLease(id)
	other := p.other()
	other.id = fmt.Sprint("finder", time.Now().UnixNano())
	other.work(1, 0)
	p.endLease(id)
}

// Guarantees: D4.
func TestCopies_ScheduleDoesNotCreateATaskThatHasRun(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	require.Equal(t, []int64{1}, p.edit(1, schedule("a", 0, "p")...))
	require.Equal(t, []int64{1}, p.edit(1, schedule("a", 0, "p")...), "while it is pending")
	a := p.claim(1)
	require.Equal(t, []int64{1}, p.edit(1, schedule("a", 0, "p")...), "while it is claimed")
	p.end(2, "done", a)
	require.Empty(t, p.tasks())

	require.Equal(t, []int64{1}, p.edit(1, schedule("a", 0, "p")...), "a repeated call")
	require.Empty(t, p.tasks())
	p.edit(2, request("cancel", "other")...)
	require.Empty(t, p.edit(1, schedule("a", 0, "p")...), "a late copy")
	require.Empty(t, p.tasks())
}

// Guarantees: D4.
func TestCopies_CancelSaysWhatItDid(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", time.Hour, "p")...)
	both := append(request("cancel", "a"), request("cancel", "b")...)
	require.Equal(t, []int64{1, 0}, p.edit(2, both...))
	require.Empty(t, p.tasks())
	require.Equal(t, []int64{1, 0}, p.edit(2, both...))

	p.other().edit(1, append(schedule("a", time.Hour, "new"), schedule("b", time.Hour, "new")...)...)
	require.Equal(t, []int64{1, 0}, p.edit(2, both...))
	require.EqualValues(t, 2, p.rdb.ZCard(t.Context(), p.key("due")).Val(), "a repeated call removes no others")
	p.edit(3, request("cancel", "none")...)
	require.Empty(t, p.edit(2, both...))
	require.EqualValues(t, 2, p.rdb.ZCard(t.Context(), p.key("due")).Val(), "neither does a late copy")
}

// Guarantees: D4, D7.
func TestCopies_CancelOfAClaimedTask(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	a := p.claim(1)
	p.edit(2, schedule("a", 0, "next")...)
	require.Equal(t, []int64{1}, p.edit(3, request("cancel", "a")...))
	require.Equal(t, []int64{1}, p.edit(3, request("cancel", "a")...))
	p.other().edit(1, schedule("a", 0, "after next")...)
	require.Equal(t, []int64{1}, p.edit(3, request("cancel", "a")...))
	p.end(2, "done", a)
	require.Equal(t, "::after next", p.claim(3).text)
}

// Guarantees: D4.
func TestCopies_Reschedule(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	move := []any{"move", "a", time.Hour.Microseconds(), "", 0, ""}
	p.edit(1, schedule("a", time.Minute, "p")...)
	require.Equal(t, []int64{1}, p.edit(2, move...))
	due := p.due()
	require.Equal(t, []int64{1}, p.edit(2, move...))
	require.Equal(t, due, p.due())
	p.edit(3, []any{"move", "a", 0, "", 0, ""}...)
	require.Empty(t, p.edit(2, move...))
	p.end(2, "done", p.claim(1))
	require.Equal(t, []int64{1}, p.edit(3, []any{"move", "a", 0, "", 0, ""}...), "the task is gone")
	require.Empty(t, p.tasks())
}

// Guarantees: D4.
func TestCopies_RetryAndDeleteOfFailedTasks(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 10)
	p.work(2, 0, "failed", "a", found[0].token, "", "failed", "b", found[1].token, "")
	both := append(request("retry", "a"), request("forget", "b")...)
	require.Equal(t, []int64{1, 1}, p.edit(2, both...))
	p.end(4, "failed", p.claim(3))
	require.Equal(t, []int64{1, 1}, p.edit(2, both...))
	require.Equal(t, []string{"a"}, p.rdb.ZRange(t.Context(), p.key("failed"), 0, -1).Val(), "it was retried once")
	p.edit(3, request("forget", "a")...)
	require.Empty(t, p.edit(2, both...))
	require.Empty(t, p.tasks())
}

// Guarantees: D3.
func TestCopies_ClaimReturnsTheSameTasks(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.busy = 9 // of ten
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 10)
	require.Len(t, found, 2)
	require.True(t, found[0].begun)
	require.False(t, found[1].begun)
	p.edit(2, append(schedule("c", 0, "p"), request("cancel", "a")...)...)
	_, again := p.work(1, 10)
	require.Len(t, again, 2)
	for i := range found {
		again[i].wait = found[i].wait // not less: see below
	}
	require.Equal(t, found, again)

	_, theirs := p.other().work(1, 10)
	require.Len(t, theirs, 1, "another process claims the rest")
	recorded, more := p.work(2, 10, "done", "a", found[0].token, "")
	require.EqualValues(t, 1, recorded)
	require.Empty(t, more)
	p.edit(3, schedule("d", 0, "p")...)
	_, late := p.work(1, 10)
	require.Empty(t, late, "a late copy")
	_, late = p.work(2, 10, "done", "b", found[1].token, "")
	require.Empty(t, late, "a copy of a call that claimed nothing")
	require.NotZero(t, p.rdb.ZScore(t.Context(), p.key("running"), "b").Val(), "and it records nothing")
	require.Equal(t, "d", p.claim(3).id)
}

// A call tells since when the first task is due that it leaves, and so does a copy.
func TestCopies_ClaimTellsWhatIsOverdue(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.at = time.UnixMicro(1 << 50)
	p.work(1, 9)
	require.Less(t, p.overdue, -100*365*24*time.Hour, "there is none")
	for i, id := range []string{"a", "b", "c"} {
		p.edit(i+1, schedule(id, time.Duration(i)*time.Minute, "p")...)
	}
	require.Equal(t, "a", p.claim(2).id)
	require.Equal(t, -time.Minute, p.overdue)
	p.at = p.at.Add(time.Hour)
	for range 2 {
		p.work(3, 0)
		require.Equal(t, 59*time.Minute, p.overdue)
	}
	p.work(4, 1)
	require.Equal(t, 58*time.Minute, p.overdue)
}

// Guarantees: D1.
func TestCopies_ClaimIsNotEarly(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.at = time.Now()
	p.edit(1, schedule("a", 4*time.Millisecond, "p")...)
	a := p.claim(1)
	require.Equal(t, 4*time.Millisecond, a.wait)
	for _, after := range []time.Duration{0, 3 * time.Millisecond, time.Second} {
		copied := *p
		copied.at = p.at.Add(after)
		again := copied.claim(1)
		require.Equal(t, 4*time.Millisecond-after, again.wait)
		require.Equal(t, a.token, again.token)
	}
}

// Guarantees: D12.
func TestCopies_ClaimDoesNotReturnTasksWhoseLeaseHasEnded(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	p.claim(1)
	p.back = -2 * redistest.SafeLease // the time has passed
	_, found := p.work(1, 10)
	require.Empty(t, found)
	require.EqualValues(t, 1, p.claimAfterPause(2).losses)
}

// Guarantees: D12.
func TestCopies_AFailureCountsOnce(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	a := p.claim(1)
	p.end(2, "again", a, 0)
	recorded, _ := p.work(2, 0, "again", "a", a.token, 0)
	require.Zero(t, recorded)
	recorded, _ = p.work(3, 0, "again", "a", a.token, 0)
	require.Zero(t, recorded, "its token is not that of an attempt")
	require.EqualValues(t, 1, p.claim(4).failures)
}

// Guarantees: D12.
func TestCopies_ALateEndDoesNotEndAnotherAttempt(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"done", "again", "failed", "back"} {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(1)
		p.loseLease("a")
		replacement := p.other().claim(1)
		require.EqualValues(t, 1, replacement.losses)
		recorded, _ := p.work(2, 0, how, "a", a.token, "0")
		require.Zero(t, recorded, how)
		p.other().end(2, "done", replacement)
		require.Empty(t, p.tasks(), how)

		p.edit(2, schedule("a", time.Hour, "replacement")...)
		recorded, _ = p.work(3, 0, how, "a", replacement.token, "0")
		require.Zero(t, recorded, how)
		require.EqualValues(t, 1, p.rdb.ZCard(t.Context(), p.key("due")).Val(), how)
	}
}

// Guarantees: D12.
func TestCopies_ALateRenewalRenewsNoOtherAttempt(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	renew := func(a claimedTask) int64 {
		renewed := p.renew(a, (2 * redistest.SafeLease).Microseconds())
		require.Len(t, renewed, 1)
		return renewed[0]
	}
	ends := func() float64 { return p.rdb.ZScore(t.Context(), p.key("running"), "a").Val() }
	p.edit(1, schedule("a", 0, "p")...)
	a, before := p.claim(1), ends()
	require.EqualValues(t, 1, renew(a))
	require.Greater(t, ends(), before)
	p.loseLease("a")
	require.Zero(t, renew(a), "the lease has ended")
	next := p.claim(2)
	before = ends()
	require.Zero(t, renew(a), "it is another attempt")
	require.InDelta(t, before, ends(), 0)
	p.edit(2, request("cancel", "a")...)
	require.EqualValues(t, 1, renew(next), "a cancelled task keeps its lease")
	p.end(3, "done", next)
	require.Zero(t, renew(next))
	require.Empty(t, p.tasks())
}

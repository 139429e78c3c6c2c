package robustness

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Control is a wrong implementation, and how it is caught. The right implementation, which is that of the scenario,
// passes the same run with the same seed.
type Control struct {
	Name     string
	Kind     string    // the wrong implementation
	Scenario *Scenario // with the right one
	Promises []string  // of which the check finds one or more broken

	// Judge returns what the checks of the scenario find; nil stands for those of each scenario.
	Judge func(*Run) []check.Fault

	// Test is a test of a package that has the wrong implementation, if no scenario shows it: the effects need a clock
	// that stands still, or are costs.
	Package, Test string
}

// Controls returns all controls.
func Controls() []*Control {
	return slices.Concat(lockControls(), leaseControls(), otherControls(), taskControls(), wheelControls())
}

// stranded are the promises of an object that stays locked.
var stranded = []string{"no waiter is stranded", "linearizable"}

// lockControls are locks that do not exclude, or do not end.
func lockControls() []*Control {
	contention := control("contention", "mutex", 1)
	contention.Length, contention.GiveUp = 6*time.Second, 0

	stops := control("processes stop", "mutex", 2, "process stopped")
	stops.Lease, stops.MaxHold, stops.Every = 600*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond

	// Most calls are those of acquisitions and releases, not of waiters.
	replies := control(
		"replies are lost, and each call is repeated until it is answered", "mutex", 3, "replies lost after execution")
	replies.Lease, replies.Retries, replies.GiveUp = 2*time.Second, 5, 0
	replies.Objects, replies.MaxHold = 50, 5*time.Millisecond
	replies.Every, replies.Length, replies.Quiet = time.Second, 6*time.Second, 10*time.Second

	return []*Control{
		{
			Name: "no-op lock", Kind: "no-op lock",
			Scenario: contention, Promises: []string{"overlap"},
		},
		{
			Name: "release without token compare", Kind: "release without comparing values",
			Scenario: stops, Promises: []string{"overlap"},
		},
		{
			Name: "counter reentrancy under lost replies", Kind: "re-entry by a counter",
			Scenario: replies, Promises: stranded,
		},
		{
			Name: "renewal kept after unlock", Kind: "renewal kept after the release",
			Scenario: contention, Promises: stranded,
		},
		{
			Name: "sub-millisecond TTL", Kind: "lease below a millisecond",
			Scenario: contention, Promises: []string{"overlap"},
		},
	}
}

// leaseControls are holds that end too soon, too late or in silence.
func leaseControls() []*Control {
	resets := control("connections are reset", "mutex", 4, "connections reset", "connections killed", "SCRIPT FLUSH")
	resets.Lease, resets.MaxHold = 3*time.Second, 6*time.Second
	resets.Retries, resets.Every = -1, 200*time.Millisecond
	resets.Objects, resets.Length = 8, 12*time.Second

	cuts := control("networks are cut", "mutex", 5, "network cut both ways", "requests lost", "replies lost")
	cuts.Lease, cuts.MaxHold = 600*time.Millisecond, 1200*time.Millisecond
	cuts.Every, cuts.Length = 200*time.Millisecond, 10*time.Second

	losses := control("data is lost", "fenced mutex", 6, "FLUSHALL")

	skew := control("clocks differ by 0.8 s", "mutex", 7)
	skew.Lease, skew.Skew, skew.MaxHold = time.Second, -800*time.Millisecond, 900*time.Millisecond

	failover := control("failover to a replica that lags", "mutex with WithReplicas", 10)
	failover.Topology, failover.Lease, failover.MaxHold = Sentinel, 15*time.Second, 12*time.Second
	failover.Objects, failover.Faults = 6, []*Fault{laggingFailover}
	failover.Every, failover.Length = time.Second, 2*time.Second

	return []*Control{
		{
			Name: "renewal stopped by one error", Kind: "renewal stopped by an error",
			Scenario: resets, Promises: []string{"kept without a fault"}, Judge: judgeKept,
		},
		{
			Name: "loss announced on error, not on deadline", Kind: "loss announced on an error",
			Scenario: cuts, Promises: []string{"overlap", "told in time"},
		},
		{
			Name: "fence by INCR with restart", Kind: "fence by INCR",
			Scenario: losses, Promises: []string{"tokens increase"},
		},
		{
			Name: "TTL in client time (PXAT)", Kind: "lease in the client's time",
			Scenario: skew, Promises: []string{"overlap"},
		},
		{
			Name: "WAIT omitted in a failover", Kind: "acquisition without WAIT",
			Scenario: failover, Promises: []string{"overlap"}, Judge: judgeOverlap,
		},
	}
}

// otherControls are permits, queues and limits.
func otherControls() []*Control {
	kills := control("processes are killed", "leased permits", 8, "process killed")
	kills.Lease, kills.Objects = time.Second, 1
	kills.MaxHold, kills.Every, kills.Length = 300*time.Millisecond, 400*time.Millisecond, 14*time.Second

	leavers := control("waiters give up", "mutex", 9)
	leavers.Lease, leavers.GiveUp, leavers.Length = 500*time.Millisecond, 0.5, 12*time.Second

	limitSkew := control("clocks of a limit differ by 2 s", "limit", 11)
	limitSkew.Objects, limitSkew.Skew = 1, -2*time.Second

	limitLoss := control("a limit loses its data", "limit", 12, "FLUSHALL")
	limitLoss.Objects, limitLoss.Every = 1, 4*time.Second

	return []*Control{
		{
			Name: "limiter on client clock", Kind: "limit on the client's clock",
			Scenario: limitSkew, Promises: []string{"a limit is kept"}, Judge: judgeLimit(2),
		},
		{
			Name: "limiter resetting on restart twice", Kind: "limit that begins anew twice",
			Scenario: limitLoss, Promises: []string{"a limit is kept"}, Judge: judgeLimit(1),
		},
		{
			Name: "semaphore without reaping", Kind: "permits whose leases never end",
			Scenario: kills, Promises: []string{"no waiter is stranded"},
		},
		{
			Name: "wake-up dropped on cancel", Kind: "wake-up dropped on cancel",
			Scenario: leavers, Promises: stranded,
		},
	}
}

// taskControls are queues of tasks.
func taskControls() []*Control {
	kills := control("workers are killed", "tasks", 13, "process killed")
	kills.Lease, kills.MaxHold, kills.Every = 3*time.Second, 300*time.Millisecond, time.Second

	cancels := control("tasks are cancelled", "tasks", 14)
	cancels.MaxHold = 500 * time.Millisecond

	skew := control("clocks of tasks differ by 0.8 s", "tasks", 15)
	skew.Skew = -800 * time.Millisecond

	return []*Control{
		{
			Name: "claim without a lease", Kind: "tasks claimed without a lease",
			Scenario: kills, Promises: []string{"no task is lost"},
		},
		{
			Name: "cancel ignoring a running task", Kind: "tasks cancelled while they run",
			Scenario: cancels, Promises: []string{"nothing runs after Cancel"},
		},
		{
			Name: "due times on client clock", Kind: "tasks on the client's clock",
			Scenario: skew, Promises: []string{"never early"},
		},
	}
}

// wheelControls are tests of package wheel: the effects need a clock that stands still, or are costs.
func wheelControls() []*Control {
	return []*Control{
		wheelControl(
			"wheel firing one tick early", "EachCheckerPassesTheWheelAndCatchesABrokenOne/one_tick_early",
		),
		wheelControl(
			"wheel dropping intake on Stop", "EachCheckerPassesTheWheelAndCatchesABrokenOne/drops_an_entry_on_Stop",
		),
		wheelControl(
			"Stop returning true after fire", "EachCheckerPassesTheWheelAndCatchesABrokenOne/Stop_lies",
		),
		wheelControl("O(missed ticks) catch-up", "ACatchUpTickByTickIsNoticed"),
		wheelControl(
			"panic killing the bucket's rest", "EachCheckerPassesTheWheelAndCatchesABrokenOne/a_panic_ends_the_rest",
		),
	}
}

// control returns the scenario of a control.
func control(name, kind string, seed uint64, faults ...string) *Scenario {
	s := usual(kind, Single)
	s.Name, s.Seed, s.Length, s.Processes, s.Faults = name, seed, 8*time.Second, 3, named(faults...)
	return s
}

func wheelControl(name, test string) *Control {
	return &Control{Name: name, Package: "wheel", Test: "TestControl_" + test}
}

// Caught is what became of a control.
type Caught struct {
	By      string // the promises found broken, or the test
	Example string
}

// Result returns the line of the report. A control that was not caught has none of its own: c is nil.
func (c *Caught) Result(of *Control) ControlResult {
	res := ControlResult{Control: of.Name, Where: "a test of package " + of.Package, Environment: newEnvironment("")}
	if of.Scenario != nil {
		res.Where = fmt.Sprintf("%s, seed %d", of.Scenario.Name, of.Scenario.Seed)
	}
	if c != nil {
		res.Caught, res.By = true, c.By
	}
	return res
}

// Check runs the right implementation, which must pass, and the wrong one, which must not.
func (c *Control) Check(t *testing.T, passed func(*Scenario, func() []check.Fault)) *Caught {
	t.Helper()
	if c.Test != "" {
		pattern := "^" + strings.ReplaceAll(c.Test, "/", "$/^") + "$"
		cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-run", pattern, "./"+c.Package)
		cmd.Dir = ".." // the module of the library
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+c.Test, "no such test")
		return &Caught{c.Test, ""}
	}
	judge := c.Judge
	if judge == nil {
		judge = (*Run).judgeAll
	}
	passed(c.Scenario, func() []check.Fault { return judge(c.Scenario.execute(t)) })
	wrong := *c.Scenario
	wrong.Kind = c.Kind
	var found []string
	var example string
	for _, f := range judge(wrong.execute(t)) {
		if slices.Contains(c.Promises, f.Promise) {
			found, example = append(found, f.Promise), f.Detail
		}
	}
	slices.Sort(found)
	require.NotEmpty(t, found, "not caught")
	return &Caught{strings.Join(slices.Compact(found), ", "), example}
}

// judgeAll logs what was measured.
func (r *Run) judgeAll() []check.Fault {
	res := r.judge()
	r.tb.Log(res)
	return res.Faults
}

// perObject returns the faults that f finds in the calls of each object.
func (r *Run) perObject(f func([]*history.Call) []check.Fault) (faults []check.Fault) {
	for _, calls := range history.ByObject(history.Calls(r.history.Events())) {
		faults = append(faults, f(calls)...)
	}
	return faults
}

// judgeKept also finds holds that were lost though no fault lasted.
func judgeKept(r *Run) []check.Fault {
	return append(r.judgeAll(), r.perObject(func(calls []*history.Call) []check.Fault {
		return check.Kept(calls, r.kind().Rules(r.Settings), nil)
	})...)
}

// judgeOverlap is for a topology that may lose releases.
func judgeOverlap(r *Run) []check.Fault {
	r.judgeAll()
	return r.perObject(func(calls []*history.Call) []check.Fault {
		_, _, faults := check.Overlap(calls, r.kind().Rules(r.Settings))
		return faults
	})
}

// judgeLimit checks a limit that may grant some bursts at once.
func judgeLimit(bursts int64) func(*Run) []check.Fault {
	bound := oracle.Limit{Rate: 1, Per: controlPeriod, Burst: bursts * controlBurst}.BucketBound()
	return func(r *Run) []check.Fault {
		return r.perObject(func(calls []*history.Call) []check.Fault {
			granted := slices.DeleteFunc(calls, func(c *history.Call) bool { return !c.Held() })
			if len(granted) < controlBurst {
				return []check.Fault{{Promise: "calls succeed", Detail: fmt.Sprint(len(granted))}}
			}
			return check.Limit(granted, bound, r.effects["FLUSHALL"], controlBurst)
		})
	}
}

// laggingFailover lets new processes acquire locks while the replicas hang, and then the primary die. What the
// replicas knew from before would keep others out as well as the locks themselves.
var laggingFailover = &Fault{
	Name: "failover to a replica that lags", On: []Topology{Sentinel}, Loses: true,
	Inject: func(r *Run) (bool, error) {
		if len(r.effects) > 0 {
			return false, nil
		}
		for _, c := range slices.Clone(r.children) {
			if err := r.kill(c); err != nil {
				return false, err
			}
		}
		primary, replicas := r.sentinel.Primary, r.sentinel.Replicas
		err := r.on(primary, func(rdb *redis.Client) error {
			if err := rdb.FlushAll(r.ctx).Err(); err != nil {
				return err
			}
			return rdb.Wait(r.ctx, len(replicas), time.Minute).Err()
		})
		if err != nil {
			return false, err
		}
		for _, s := range replicas {
			s.Pause()
		}
		err = r.on(primary, func(rdb *redis.Client) error { // or the rest would be in the buffers of the sockets
			return rdb.Do(r.ctx, "client", "kill", "type", "replica").Err()
		})
		if err != nil {
			return false, err
		}
		r.children = nil
		for range r.Processes {
			if err := r.start(); err != nil {
				return false, err
			}
		}
		r.sleep(2 * time.Second)
		primary.Kill()
		for _, s := range replicas {
			s.Resume()
		}
		r.servers = replicas
		r.awaitSuccessor(primary)
		r.sleep(5 * time.Second) // in which holders meet
		return true, nil
	},
}

package sim

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

func (w *world) judgeTasks() (faults []check.Fault) {
	for i, o := range w.Objects {
		if !isTasks(o.Kind) {
			continue
		}
		j := &taskJudge{
			world: w, object: i, name: o.Name,
			tasks: make(map[string]*taskState), records: make(map[string]*taskRecord), renewals: make(map[int][]int64),
		}
		j.judgePlans()
		if j.replay() && !w.has(failoverAlive) { // what the old primary did is not known
			j.judgeEnd()
			j.judgeCalls()
			j.judgeRuns()
			j.judgeAlone()
			if !j.losesData() {
				j.judgeLapses()
				j.judgeIdle()
			}
		}
		for _, f := range j.faults {
			f.Object = o.Name
			faults = append(faults, f)
		}
	}
	return faults
}

// judgeEnd checks what is left at the end.
func (j *taskJudge) judgeEnd() {
	var failed []string
	for _, id := range slices.Sorted(maps.Keys(j.tasks)) {
		switch t := j.tasks[id]; t.phase {
		case delay.PhasePending, delay.PhaseClaimed:
			j.faultf(t.due*1000, nothingLost, "%s #%s is %s", id, t.payload, t.phase)
		case delay.PhaseFailed:
			failed = append(failed, id)
		}
	}
	if left := j.failed[j.name]; !slices.Equal(left, failed) {
		j.faultf(0, nothingLost, "%v are among the failed, and not %v", left, failed)
	}
}

// judgePlans judges tasks by what their callers and handlers saw alone.
func (j *taskJudge) judgePlans() {
	calls, runs := make(map[string][]*taskCall), make(map[string][]*taskRun)
	for _, c := range j.taskCalls {
		if c.Object == j.object {
			calls[c.Task.ID] = append(calls[c.Task.ID], c)
		}
	}
	for _, r := range j.taskRuns {
		runs[string(r.Payload)] = append(runs[string(r.Payload)], r)
	}
	for id, about := range calls {
		for _, c := range about {
			if c.Action != Plan {
				continue
			}
			for _, r := range runs[c.payload] {
				if least := earliest(c, about, r.began); r.clock < least && !j.stepped(c.called, r.began) {
					j.faultf(r.began, neverEarly, "#%s of %s began %d us early", c.payload, id, least-r.clock)
				}
			}
			failed := slices.Contains(j.failed[j.name], id)
			done := slices.ContainsFunc(runs[c.payload], (*taskRun).done)
			if len(about) == 1 && c.err == nil && !done && !failed && !j.losesData() {
				j.faultf(c.returned, nothingLost, "#%s of %s has not run to its end", c.payload, id)
			}
		}
	}
}

func (r *taskRun) done() bool { return r.err == nil && r.returned < forever }

// earliest returns the earliest instant at which an attempt of a task may begin, given the calls about its id that were
// called before.
func earliest(c *taskCall, about []*taskCall, before int64) int64 {
	least := forever
	for _, other := range about {
		switch replaces := other.Action == Plan && other.Task.Most == 0; {
		case other != c && (other.called > before || replaces || other.Action == Cancel || other.Action == Forget):
		case other.Task.Most > 0 || other.Action == Retry:
			return 0 // as soon as another call says
		default:
			least = min(least, other.clock+other.Task.Delay.Microseconds())
		}
	}
	return least
}

// verbs are the actions of calls, as the script takes them.
var verbs = map[Action]string{Plan: "schedule", Cancel: "cancel", Move: "move", Retry: "retry", Forget: "forget"}

// judgeCalls finds calls that returned what no request did, and requests that took effect twice.
func (j *taskJudge) judgeCalls() {
	for _, c := range j.taskCalls {
		if c.Object != j.object {
			continue
		}
		told, times := false, 0
		for _, e := range j.edits {
			if e.link != c.link || e.verb != verbs[c.Action] || e.id != c.Task.ID {
				continue
			}
			if c.Action == Plan && e.payload != c.payload {
				continue
			}
			times++
			told = told || c.called <= e.at && e.at <= c.returned && (c.Action == Plan || c.done == (e.result == "1"))
		}
		if c.err == nil && !told {
			j.faultf(c.returned, asSaid, "%s #%s of %s said %v", c.Action, c.payload, c.Task.ID, c.done)
		}
		if c.Action == Plan && times > 1 && !j.losesData() {
			j.faultf(c.called, copiesDoNothing, "#%s of %s was scheduled %d times", c.payload, c.Task.ID, times)
		}
	}
}

// judgeRuns compares what handlers saw with what the server granted and recorded.
func (j *taskJudge) judgeRuns() {
	type attempt struct {
		id    string
		token int64
	}
	claims := make(map[attempt]*taskClaim)
	newest := make(map[string]*taskClaim)
	for _, c := range j.claims {
		if before := newest[c.id]; before != nil {
			before.superseded = c.at
		}
		newest[c.id], claims[attempt{c.id, c.token}] = c, c
	}
	for _, r := range j.taskRuns {
		c := claims[attempt{r.ID, r.Token}]
		switch {
		case r.object != j.object:
			continue
		case c == nil || c.link != r.link || c.payload != string(r.Payload) || c.run != nil:
			j.faultf(r.began, "a handler runs a claimed task once", "token %d, %s #%s", r.Token, r.ID, r.Payload)
			continue
		case r.clock < c.due && !j.stepped(c.at, r.began):
			j.faultf(r.began, neverEarly, "#%s of %s began %d us before its time", r.Payload, r.ID, c.due-r.clock)
		}
		if c.run = r; r.ended > c.superseded && !j.losesData() && !j.stood(r.process, c.at, c.superseded) {
			j.faultf(c.superseded, "a context ends before the next attempt", "that of %s, token %d", r.ID, r.Token)
		}
	}
	for _, e := range j.ends {
		r := claims[attempt{e.id, e.token}].run
		returned := r != nil && r.returned <= e.at
		if (e.how == "done") != (returned && r.err == nil) || (e.how == "again" || e.how == "failed") && !returned {
			j.faultf(e.at, "an attempt ends as its handler does", "%q of %s, token %d", e.how, e.id, e.token)
		}
	}
	j.judgeEffects()
}

// judgeEffects applies the effect of each handler under its token, as a store does that refuses lower and equal ones.
// The effect of a handler whose context has not ended is not refused.
func (j *taskJudge) judgeEffects() {
	runs := slices.Clone(j.taskRuns)
	slices.SortFunc(runs, func(a, b *taskRun) int { return cmp.Compare(a.returned, b.returned) })
	store := make(map[string]int64)
	for _, r := range runs {
		if r.object != j.object || r.returned == forever || r.err != nil && !errors.Is(r.err, errHandler) {
			continue
		}
		if r.Token > store[r.ID] {
			store[r.ID] = r.Token
		} else if r.ended == r.returned && !j.losesData() && !j.stood(r.process, r.began, r.returned) {
			j.faultf(r.returned, tokensRise, "effect of %s, token %d, after %d", r.ID, r.Token, store[r.ID])
		}
	}
}

// leasesEnd reports whether a lease can end in the run before it is renewed, or its task handed back.
func (j *taskJudge) leasesEnd() bool {
	ends := func(f Fault) bool { k := faultOf(f.Kind); return k.ends || k.loses }
	return j.refused || len(j.Faults) > 0 && (slices.ContainsFunc(j.Faults, ends) || j.outages()+j.slack() > j.Lease/2)
}

// unnoticed is for how long a process may not notice that the server's clock was set back: until a request that it
// sends later takes less time to the server than that.
const unnoticed = int64(5 * time.Second)

// stepped reports whether the server's clock was moved, or data lost, and a process may not have noticed it in time.
func (j *taskJudge) stepped(from, to int64) bool {
	from -= unnoticed
	return slices.ContainsFunc(j.server.lost, func(at int64) bool { return from <= at && at <= to })
}

// stood reports whether a process stood still at some time, or was killed before the end of it. One stop may begin
// within another.
func (j *taskJudge) stood(process int, from, to int64) bool {
	since, stops := forever, 0
	for _, e := range j.history.Events() {
		if history.ProcessOf(e.Client) != process || e.At > to {
			continue
		}
		switch e.Step {
		case history.Killed:
			return true
		case history.Stopped:
			since = min(since, e.At)
			stops++
		case history.Resumed:
			if e.At >= from {
				return true
			}
			if stops--; stops == 0 {
				since = forever
			}
		}
	}
	return since <= to
}

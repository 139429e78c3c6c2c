package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

const ms = int64(time.Millisecond)

// taskRules have a lease of a second.
var taskRules = check.TaskRules{Lease: time.Second, Attempts: 3, Slack: 500 * time.Millisecond}

// taskCall makes the events of a call of a task by process 1 that took a millisecond. Instants are in milliseconds, and
// the clock of the servers is that of the history.
func taskCall(id uint64, verb string, at, delay int64, outcome history.Step) []history.Event {
	return []history.Event{
		{
			Step: history.Called, ID: id, Client: history.ClientID(1, 0), Object: "q/order", At: at * ms,
			Task: &history.Task{Verb: verb, Delay: time.Duration(delay * ms), Clock: at * 1000},
		},
		{Step: outcome, ID: id, At: (at + 1) * ms},
	}
}

// run is an attempt: 30 ms of a handler of a process, unless it says otherwise.
type run struct {
	id, call         uint64
	process          int
	token, at        int64
	until            int64 // at which it relied on its context for the last time
	failures, losses int
	outcome          history.Step // Done if empty; Began does not return
}

func (r run) events() []history.Event {
	if r.until == 0 {
		r.until = r.at + 30
	}
	events := []history.Event{
		{
			Step: history.Began, ID: r.id, Client: history.ClientID(r.process, 0), Object: "q/order", At: r.at * ms,
			Token: r.token,
			Task:  &history.Task{Clock: r.at * 1000, Call: r.call, Failures: r.failures, Losses: r.losses},
		},
		{Step: history.Relied, ID: r.id, At: r.until * ms},
	}
	switch r.outcome {
	case history.Began:
	case "":
		events = append(events, history.Event{Step: history.Done, ID: r.id, At: r.until * ms})
	default:
		events = append(events, history.Event{Step: r.outcome, ID: r.id, At: r.until * ms})
	}
	return events
}

func of(process int, step history.Step, at int64) []history.Event {
	return []history.Event{{Step: step, Client: history.ClientID(process, 0), At: at * ms}}
}

func wrote(id uint64, seq int64, step history.Step) []history.Event {
	return []history.Event{{Step: step, ID: id, Seq: seq, At: 9000 * ms}}
}

func TestTasks(t *testing.T) {
	t.Parallel()
	type parts = [][]history.Event
	const (
		ok, no, failed = history.Granted, history.Refused, history.Failed
		cause, lost    = "each further attempt has a cause", "no task is lost"
		after          = "nothing runs after Cancel"
	)
	schedule := taskCall(1, "schedule", 0, 100, ok)
	once := run{id: 10, call: 1, process: 2, token: 5, at: 100}
	raised := run{id: 10, call: 1, process: 2, token: 5, at: 100, outcome: history.Raised}
	dead := run{id: 10, call: 1, process: 2, token: 5, at: 100, outcome: history.Began}
	for what, c := range map[string]struct {
		parts parts
		want  string // the promise found broken, or nothing
	}{
		"at its time": {parts{schedule, once.events()}, ""},
		"early (control)": {parts{
			schedule, run{id: 10, call: 1, process: 2, token: 5, at: 99}.events(),
		}, "never early"},
		"moved to an earlier time": {parts{
			schedule, taskCall(2, "move", 10, 40, ok), run{id: 10, call: 1, token: 5, at: 50}.events(),
		}, ""},
		"perhaps moved": {parts{
			schedule, taskCall(2, "move", 10, 40, failed), run{id: 10, call: 1, token: 5, at: 50}.events(),
		}, ""},
		"not moved (control)": {parts{
			schedule, taskCall(2, "move", 10, 40, no), run{id: 10, call: 1, token: 5, at: 50}.events(),
		}, "never early"},
		"moved away (control)": {parts{
			schedule, taskCall(2, "move", 10, 200, ok), once.events(),
		}, "never early"},
		"lost (control)":                {parts{schedule}, lost},
		"lost after an error (control)": {parts{schedule, raised.events()}, lost},
		"failed for good": {parts{
			schedule, raised.events(),
			run{id: 11, call: 1, token: 6, at: 200, failures: 1, outcome: history.Raised}.events(),
			run{id: 12, call: 1, token: 7, at: 300, failures: 2, outcome: history.Raised}.events(),
		}, ""},
		"perhaps not scheduled": {parts{taskCall(1, "schedule", 0, 100, failed)}, ""},
		"cancelled":             {parts{schedule, taskCall(2, "cancel", 10, 0, ok)}, ""},
		"perhaps cancelled":     {parts{schedule, taskCall(2, "cancel", 10, 0, failed)}, ""},
		"replaced": {parts{
			schedule, taskCall(2, "schedule", 10, 100, ok), run{id: 10, call: 2, token: 5, at: 110}.events(),
		}, ""},
		"perhaps replaced": {parts{
			schedule, taskCall(2, "schedule", 10, 100, failed), once.events(),
		}, ""},
		"perhaps replaced, and lost (control)": {parts{
			schedule, taskCall(2, "schedule", 10, 100, failed),
		}, lost},
		"after an error": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
		}, ""},
		"after a death before its beginning was known": {parts{
			schedule, dead.events(), of(2, history.Killed, 150), run{id: 11, call: 1, token: 6, at: 1100}.events(),
		}, ""},
		"after a death, and within the lease (control)": {parts{
			schedule, dead.events(), of(2, history.Killed, 150), run{id: 11, call: 1, token: 6, at: 1000}.events(),
		}, cause},
		"after no loss (control)": {parts{
			schedule, dead.events(), run{id: 11, call: 1, token: 6, at: 1200}.events(),
		}, cause},
		"handed back": {parts{
			schedule, raised.events(), of(2, history.Stopping, 120),
			run{id: 11, call: 1, token: 6, at: 200}.events(),
		}, ""},
		"after an error that did not count (control)": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 6, at: 200}.events(),
		}, cause},
		"after success (control)": {parts{
			schedule, once.events(), run{id: 11, call: 1, token: 6, at: 200}.events(),
		}, cause},
		"a failure that was none (control)": {parts{
			schedule, once.events(), run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
		}, cause},
		"after the death of its process": {parts{
			schedule, dead.events(), of(2, history.Killed, 150),
			run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, ""},
		"before its lease had ended (control)": {parts{
			schedule, dead.events(), of(2, history.Killed, 150),
			run{id: 11, call: 1, token: 6, at: 1000, losses: 1}.events(),
		}, cause},
		"nobody died (control)": {parts{
			schedule, dead.events(), run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, cause},
		"another one died (control)": {parts{
			schedule, dead.events(), of(3, history.Killed, 150),
			run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, cause},
		"one that had not begun died": {parts{
			schedule, of(3, history.Killed, 150), run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, ""},
		"moved after one that had not begun died": {parts{
			schedule, of(3, history.Killed, 150), taskCall(2, "move", 1110, 10, ok),
			run{id: 11, call: 1, token: 6, at: 1130, losses: 1}.events(),
		}, ""},
		"moved, and one died too late (control)": {parts{
			schedule, of(3, history.Killed, 150), taskCall(2, "move", 900, 10, ok),
			run{id: 11, call: 1, token: 6, at: 1000, losses: 1}.events(),
		}, cause},
		"while its process was stopped": {parts{
			schedule, run{id: 10, call: 1, process: 2, token: 5, at: 100, until: 3000}.events(),
			of(2, history.Stopped, 150), of(2, history.Resumed, 2900),
			run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, ""},
		"two at a time (control)": {parts{
			schedule, run{id: 10, call: 1, process: 2, token: 5, at: 100, until: 3000}.events(),
			of(2, history.Stopped, 50), of(2, history.Resumed, 60),
			run{id: 11, call: 1, token: 6, at: 1100, losses: 1}.events(),
		}, "one attempt at a time"},
		"the same token (control)": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 5, at: 200, failures: 1}.events(),
		}, "tokens rise"},
		"a lower token (control)": {parts{
			schedule, once.events(), taskCall(2, "schedule", 200, 0, ok),
			run{id: 11, call: 2, token: 4, at: 200}.events(),
		}, "tokens rise"},
		"a lower token, and a failure (control)": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 4, at: 200, failures: 1}.events(),
		}, "tokens rise"},
		"effects in order": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
			wrote(10, 1, history.Wrote), wrote(11, 2, history.Wrote),
		}, ""},
		"a late effect": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
			wrote(10, 2, history.Rejected), wrote(11, 1, history.Wrote),
		}, ""},
		"a late effect that was applied (control)": {parts{
			schedule, raised.events(), run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
			wrote(10, 2, history.Wrote), wrote(11, 1, history.Wrote),
		}, "an effect is applied once"},
		"twice under one token (control)": {parts{
			schedule, once.events(), wrote(10, 1, history.Wrote), wrote(10, 2, history.Wrote),
		}, "an effect is applied once"},
		"after Cancel (control)": {parts{
			schedule, taskCall(2, "cancel", 10, 0, ok), once.events(),
		}, after},
		"running during Cancel": {parts{
			schedule, once.events(), taskCall(2, "cancel", 110, 0, no),
		}, ""},
		"running during a Cancel that returned true (control)": {parts{
			schedule, once.events(), taskCall(2, "cancel", 110, 0, ok),
		}, after},
		"its successor was cancelled": {parts{
			schedule, once.events(), taskCall(2, "schedule", 105, 50, ok), taskCall(3, "cancel", 110, 0, ok),
		}, ""},
		"its successor ran (control)": {parts{
			schedule, once.events(), taskCall(2, "schedule", 105, 50, ok), taskCall(3, "cancel", 110, 0, ok),
			run{id: 11, call: 2, token: 6, at: 160}.events(),
		}, after},
		"a further attempt after Cancel (control)": {parts{
			schedule, raised.events(), taskCall(2, "cancel", 110, 0, no),
			run{id: 11, call: 1, token: 6, at: 200, failures: 1}.events(),
		}, after},
		"claimed during Cancel": {parts{
			schedule, taskCall(2, "cancel", 98, 0, no), once.events(),
		}, ""},
		"claimed while it was replaced": {parts{
			schedule, taskCall(2, "schedule", 98, 0, ok), once.events(),
			run{id: 11, call: 2, token: 6, at: 140}.events(),
		}, ""},
		"twice after it was replaced (control)": {parts{
			schedule, taskCall(2, "schedule", 98, 0, ok), raised.events(),
			run{id: 11, call: 1, token: 6, at: 140, failures: 1}.events(),
			run{id: 12, call: 2, token: 7, at: 240}.events(),
		}, "nothing runs after its end"},
		"of no schedule (control)": {parts{
			schedule, once.events(), run{id: 11, call: 7, token: 6, at: 200}.events(),
		}, "each attempt is of a schedule"},
	} {
		var h history.History
		for _, part := range c.parts {
			for _, e := range part {
				h.Add(e)
			}
		}
		_, faults := check.Tasks(h.Events(), taskRules)
		if c.want == "" {
			require.Empty(t, faults, what)
			continue
		}
		require.NotEmpty(t, faults, what)
		for _, f := range faults {
			require.Equal(t, c.want, f.Promise, "%s: %v", what, f)
		}
	}
}

func TestTasks_OutagesEndLeases(t *testing.T) {
	t.Parallel()
	var h history.History
	for _, part := range [][]history.Event{
		taskCall(1, "schedule", 0, 100, history.Granted),
		run{id: 10, call: 1, process: 2, token: 5, at: 100}.events(),
		run{id: 11, call: 1, process: 3, token: 6, at: 1100, losses: 1}.events(),
	} {
		for _, e := range part {
			h.Add(e)
		}
	}
	r := taskRules
	_, faults := check.Tasks(h.Events(), r)
	require.Len(t, faults, 1)
	r.Outages = []check.Span{{From: 200 * ms, To: 1000 * ms}}
	figures, faults := check.Tasks(h.Events(), r)
	require.Empty(t, faults)
	require.Equal(t, 1, figures.Losses)
	require.Equal(t, 2, figures.Attempts)
}

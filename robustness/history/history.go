// Package history records what the clients of a run did and observed. All processes of a run share one machine
// and stamp their events with its monotonic clock, so events of different processes compare exactly.
package history

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the machine's monotonic clock in nanoseconds. Its zero is the same for all processes.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // only a bad clock id fails
	}
	return ts.Nano()
}

// Step is a step in the life of a call and of what it acquired.
type Step string

// The steps.
const (
	Called   Step = "called"   // an acquisition was called
	Granted  Step = "granted"  // it returned with the object
	Refused  Step = "refused"  // it returned: the object is held by others
	Failed   Step = "failed"   // it returned an error: whether the server executed it is unknown
	Relied   Step = "relied"   // the client relied on the object, which was valid at At or later
	Told     Step = "told"     // the client was told that the object is lost
	Release  Step = "release"  // the release was called
	Released Step = "released" // it returned: the object was held until now, and is free
	Lost     Step = "lost"     // it returned: the object had been lost before
	Open     Step = "open"     // it returned an error: whether the object is free is unknown
	Wrote    Step = "wrote"    // the fenced store accepted a write under the token of the hold
	Rejected Step = "rejected" // it refused the write
	Trouble  Step = "trouble"  // the client met something that no fault explains: Note says what
	Closed   Step = "closed"   // the Close of Client returned, in the midst of its calls
	Effect   Step = "effect"   // the fault of Note changed N things in the process
	Killed   Step = "killed"   // the process of Client was killed
	Stopped  Step = "stopped"  // the process of Client was stopped
	Resumed  Step = "resumed"  // it goes on
	Ended    Step = "ended"    // the process ended by itself, with nothing left behind
	Began    Step = "began"    // an attempt of a task began under Token
	Done     Step = "done"     // its handler returned nil
	Raised   Step = "raised"   // its handler returned an error or panicked
	Stopping Step = "stopping" // Client was told to end serving the queue of Object, or all if it is empty
)

// clientsOf is the largest number of clients of a process.
const clientsOf = 1 << 16

// ClientID returns the id of the i-th client of a process.
func ClientID(process, i int) uint64 { return uint64(process)*clientsOf + uint64(i) }

// ProcessOf returns the process of a client.
func ProcessOf(client uint64) int { return int(client / clientsOf) }

// Event is one step. The first event of an id carries what was called.
type Event struct {
	At    int64  `json:"at"`
	Step  Step   `json:"step"`
	ID    uint64 `json:"id,omitempty"` // of the call, unique in a run
	Note  string `json:"note,omitempty"`
	Token int64  `json:"token,omitempty"` // of Granted
	Seq   int64  `json:"seq,omitempty"`   // of Wrote and Rejected: the store's count of writes

	Client uint64 `json:"client,omitempty"` // see ClientID
	Object string `json:"object,omitempty"`
	Owner  uint64 `json:"owner,omitempty"` // holds of one owner do not exclude each other
	N      int64  `json:"n,omitempty"`     // permits
	Shared bool   `json:"shared,omitempty"`
	Try    bool   `json:"try,omitempty"` // a call that does not wait
	Task   *Task  `json:"task,omitempty"`
}

// Task is what Called and Began say of a task.
type Task struct {
	Clock int64 `json:"clock,omitempty"` // us of the servers' clock, before the call, or after the attempt began

	Verb  string        `json:"verb,omitempty"`  // of Called: schedule, cancel or move
	Delay time.Duration `json:"delay,omitempty"` // of Called

	Call     uint64 `json:"call,omitempty"`     // of Began: the call that scheduled it
	Failures int    `json:"failures,omitempty"` // of Began
	Losses   int    `json:"losses,omitempty"`   // of Began
}

// Recorder writes events as lines of JSON. Each event is one write, so a process that is killed loses none
// that it recorded. It is safe for concurrent use.
type Recorder struct {
	mu sync.Mutex
	w  io.Writer
}

// NewRecorder returns a Recorder that writes to w.
func NewRecorder(w io.Writer) *Recorder { return &Recorder{w: w} }

// Record stamps the event if it has no time, and writes it. Errors are those of a reader that is gone.
func (r *Recorder) Record(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // an Event has only strings and numbers
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.w.Write(append(line, '\n'))
}

// History collects the events of all processes of a run. It is safe for concurrent use.
type History struct {
	mu     sync.Mutex
	events []Event
}

// Read adds the events of a process until it ends. An incomplete last line is that of a process that was
// killed, and is dropped.
func (h *History) Read(from io.Reader) error {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil //nolint:nilerr // the process has ended
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		h.Add(e)
	}
}

// Add adds one event.
func (h *History) Add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// Events returns the events so far, in the order of their times.
func (h *History) Events() []Event {
	h.mu.Lock()
	events := slices.Clone(h.events)
	h.mu.Unlock()
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return events
}

// Never is the time of what has not happened.
const Never = math.MaxInt64

// Call is an acquisition and what became of it. Times of steps that did not happen are Never.
type Call struct {
	Event        // of Called; Note is that of the outcome
	Outcome Step // Granted, Refused or Failed; Called if the process was killed meanwhile

	Return   int64
	Token    int64
	Relied   int64 // the last instant at which the client relied on the object; Never if it never did
	Told     int64
	Release  int64
	Released int64 // the release returned
	End      Step  // Released, Lost or Open; empty if it did not return
	Killed   int64 // the process was killed before the release returned
	Writes   []Write
}

// Write is a write to the fenced store.
type Write struct {
	At       int64 // when the answer came
	Seq      int64 // the order at the store
	Accepted bool
}

// Held reports whether the call was granted.
func (c *Call) Held() bool { return c.Outcome == Granted }

// Gone returns the time from which no sign of the client may come any more: it released the object, the call
// failed, or its process was killed. It is Never if the history ended before.
func (c *Call) Gone() int64 {
	switch {
	case c.Outcome == Refused, c.Outcome == Failed:
		return c.Return
	case c.End != "":
		return c.Released
	default:
		return c.Killed
	}
}

// Calls folds events into calls, in the order in which they were called.
func Calls(events []Event) []*Call {
	byID := make(map[uint64]*Call)
	byProcess := make(map[int][]*Call)
	var calls []*Call
	for _, e := range events {
		process := ProcessOf(e.Client)
		switch e.Step {
		case Called:
			c := &Call{
				Event: e, Outcome: Called, Return: Never,
				Relied: Never, Told: Never, Release: Never, Released: Never, Killed: Never,
			}
			byID[e.ID] = c
			byProcess[process] = append(byProcess[process], c)
			calls = append(calls, c)
		case Killed:
			for _, c := range byProcess[process] {
				if c.Gone() == Never {
					c.Killed = e.At
				}
			}
		default:
			if c := byID[e.ID]; c != nil {
				c.add(e)
			}
		}
	}
	return calls
}

func (c *Call) add(e Event) {
	switch e.Step {
	case Granted, Refused, Failed:
		c.Outcome, c.Return, c.Token, c.Note = e.Step, e.At, e.Token, e.Note
	case Relied:
		c.Relied = e.At
	case Told:
		c.Told = min(c.Told, e.At)
	case Release:
		c.Release = e.At
	case Released, Lost, Open:
		c.End, c.Released = e.Step, e.At
	case Wrote, Rejected:
		c.Writes = append(c.Writes, Write{At: e.At, Seq: e.Seq, Accepted: e.Step == Wrote})
	}
}

// Attempt is an attempt of a task and what became of it. Times of steps that did not happen are Never.
type Attempt struct {
	Event         // of Began
	Relied  int64 // the last instant at which its context had not ended
	Outcome Step  // Done or Raised; Began if the handler did not return
	Return  int64
	Writes  []Write
}

// Attempts folds events into attempts, in the order in which they began.
func Attempts(events []Event) (attempts []*Attempt) {
	byID := make(map[uint64]*Attempt)
	for _, e := range events {
		if e.Step == Began {
			byID[e.ID] = &Attempt{Event: e, Relied: e.At, Outcome: Began, Return: Never}
			attempts = append(attempts, byID[e.ID])
		}
		a := byID[e.ID]
		if a == nil {
			continue
		}
		switch e.Step {
		case Relied:
			a.Relied = e.At
		case Done, Raised:
			a.Outcome, a.Return = e.Step, e.At
		case Wrote, Rejected:
			a.Writes = append(a.Writes, Write{At: e.At, Seq: e.Seq, Accepted: e.Step == Wrote})
		}
	}
	return attempts
}

// ByObject groups calls by their object.
func ByObject(calls []*Call) map[string][]*Call {
	groups := make(map[string][]*Call)
	for _, c := range calls {
		groups[c.Object] = append(groups[c.Object], c)
	}
	return groups
}

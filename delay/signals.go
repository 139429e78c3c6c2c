package delay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Outcome is how an attempt has ended.
type Outcome string

// The outcomes.
const (
	OutcomeDone    Outcome = "done"    // the handler returned nil
	OutcomeRetried Outcome = "retried" // the handler returned an error or panicked; another attempt follows
	// OutcomeExhausted: the task has failed, because its attempts were used up, or at any attempt by Fail.
	OutcomeExhausted  Outcome = "exhausted"
	OutcomeHandedBack Outcome = "handed back" // Serve was ending; another process runs the task
	// OutcomeLost: the lease ended before the handler began or ended; another process may run it.
	OutcomeLost Outcome = "lost"
)

// Event describes the end of an attempt.
type Event struct {
	Context  context.Context // that of the handler
	Queue    string
	ID       string
	Token    int64
	Failures int           // earlier attempts that failed
	Losses   int           // earlier attempts that had begun when their lease was lost
	Headers  string        // of Hooks.Headers
	Late     time.Duration // from the time at which the task was due to the start of the handler, 0 or more
	Took     time.Duration // time of the handler; 0 if the attempt was not begun
	Outcome  Outcome
	Err      error // of the handler
}

// Hooks are functions that a Client calls, for metrics and traces. Each may be nil. Several may run at a time, on
// separate goroutines. They must return soon: Schedule waits for Headers, and an attempt for Context and Ended. A panic
// of a hook is logged. A hook that panics or ends its goroutine harms no attempt.
type Hooks struct {
	// Headers returns a text that is stored with a task that is scheduled under ctx, such as the trace of the caller.
	// A text of more than 1024 bytes is dropped.
	Headers func(ctx context.Context) string

	// Context returns the context of the handler for an attempt that begins, such as that of a span. It must derive
	// from ctx, or the handler does not learn that Serve or its lease has ended; nil stands for ctx. Err, Took and
	// Outcome of the Event are not set.
	Context func(ctx context.Context, e Event) context.Context

	// Ended is called for each attempt that has ended.
	Ended func(Event)

	// Incident is called for each Incident.
	Incident func(Incident)
}

// Stats are the counts of a Client since New, and its present numbers.
type Stats struct {
	Serving int // calls of Serve that have not returned
	Running int // handlers that run now
	Claimed int // tasks that this process has claimed, with those that run

	Paused int // queues that this Client serves and that are paused, as of its last query; see Pause

	// Overdue is how late the oldest task is that has not begun, or 0: of the queues that this Client serves, paused or
	// not, as of the last 5 s. A Client that only schedules does not know it.
	Overdue time.Duration

	Scheduled int64 // calls of Schedule, ScheduleAt and Reschedule that took effect, and tasks of ScheduleAll
	Cancelled int64 // calls of Cancel that removed a task

	Done, Retried, Exhausted, HandedBack, Lost int64 // attempts, by Outcome

	LostTooOften, Deleted, NoPayload int64 // tasks, by the kind of their Incident

	// Err is the error of the last query, renewal or call that failed, or nil; ErrAt is when that was.
	Err   error
	ErrAt time.Time

	Late wheel.Histogram // Event.Late of the attempts that were begun
	Took wheel.Histogram // Event.Took of these

	Renewal renewal.Stats // the renewals in the background
}

// monitor counts, and calls the hooks. It is safe for concurrent use. No hook runs under mu.
type monitor struct {
	hooks  Hooks
	logger *slog.Logger

	mu    sync.Mutex
	stats Stats // only the counts
	late  histogram.Values
	took  histogram.Values

	failures signals.Failures
}

// call calls a hook, or another function of the user, apart. A failure is logged.
func (m *monitor) call(f func()) {
	usercode.Apart(f, func(f *usercode.Failure) {
		m.logger.LogAttrs(context.Background(), slog.LevelError, "delay: a hook or backoff panicked",
			slog.Any("panic", f.Value), slog.String("stack", f.Stack))
	})
}

// failed keeps the error of a call to Redis.
func (m *monitor) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures.Keep(err)
}

// repeated is failed for a call that is repeated. It logs the first of several.
func (m *monitor) repeated(err error) {
	m.mu.Lock()
	first := m.failures.Repeated(err)
	m.mu.Unlock()
	if first {
		m.logger.LogAttrs(context.Background(), slog.LevelWarn, "delay: calls of Serve fail and are repeated",
			slog.Any("error", err))
	}
}

// edited counts a request that was done.
func (m *monitor) edited(verb string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch verb {
	case "schedule", "move":
		m.stats.Scheduled++
	case "cancel":
		m.stats.Cancelled++
	}
}

// count returns the count of an outcome.
func (s *Stats) count(o Outcome) *int64 {
	switch o {
	case OutcomeDone:
		return &s.Done
	case OutcomeRetried:
		return &s.Retried
	case OutcomeExhausted:
		return &s.Exhausted
	case OutcomeHandedBack:
		return &s.HandedBack
	default:
		return &s.Lost
	}
}

// headers returns what is stored with a task.
func (m *monitor) headers(ctx context.Context) (headers string) {
	if m.hooks.Headers != nil {
		m.call(func() { headers = m.hooks.Headers(ctx) })
	}
	if len(headers) > maxHeaders {
		return ""
	}
	return headers
}

// began counts an attempt that begins, and returns the context of its handler.
func (m *monitor) began(ctx context.Context, e Event) context.Context {
	m.mu.Lock()
	m.stats.Running++
	m.late.Add(e.Late)
	m.mu.Unlock()
	if m.hooks.Context == nil {
		return ctx
	}
	var made context.Context
	m.call(func() { made = m.hooks.Context(ctx, e) }) //nolint:fatcontext // it runs once
	if made == nil {
		return ctx
	}
	return made
}

// ended reports the end of an attempt; begins says whether its handler ran.
func (m *monitor) ended(e Event, begins bool) {
	m.mu.Lock()
	*m.stats.count(e.Outcome)++
	if begins {
		m.stats.Running--
		m.took.Add(e.Took)
	}
	m.mu.Unlock()
	if m.hooks.Ended != nil {
		m.call(func() { m.hooks.Ended(e) })
	}
}

// Stats returns the counts of the Client. It is safe for concurrent use.
func (c *Client) Stats() Stats {
	m := &c.monitor
	m.mu.Lock()
	s := m.stats
	s.ErrAt, s.Err = m.failures.Last()
	s.Late, s.Took = wheel.Histogram(m.late), wheel.Histogram(m.took)
	m.mu.Unlock()
	c.mu.Lock()
	servers := make([]*server, 0, len(c.serving))
	for _, one := range c.serving {
		servers = append(servers, one)
	}
	c.mu.Unlock()
	now := c.wheel.Now()
	s.Serving, s.Overdue = len(servers), c.solo.overdue(now)
	for _, one := range servers {
		one.mu.Lock()
		s.Claimed += one.heldLocked()
		if one.paused {
			s.Paused++
		}
		s.Overdue = max(s.Overdue, one.overdueLocked(now))
		one.mu.Unlock()
	}
	s.Renewal = c.redis.Renewer.Stats()
	return s
}

package cogwheelprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// NewDelayCollector returns a collector for a Client of package delay, with the label client="name". Where some
// processes schedule the tasks of a queue and others serve it, give their clients the same name: an alert compares
// the two.
func NewDelayCollector(name string, c *delay.Client) prometheus.Collector {
	t := newTable[delay.Stats]("delay", "client", name)
	t.gauge("serving", "Calls of Serve that have not returned.",
		func(s *delay.Stats) float64 { return float64(s.Serving) })
	t.gauge("running", "Handlers that run.",
		func(s *delay.Stats) float64 { return float64(s.Running) })
	t.gauge("claimed", "Tasks that this process has claimed, with those that run.",
		func(s *delay.Stats) float64 { return float64(s.Claimed) })
	t.gauge("paused", "Queues that are served and paused.",
		func(s *delay.Stats) float64 { return float64(s.Paused) })
	t.gauge("oldest_overdue_seconds", "How late the oldest task of the served queues is that has not begun.",
		func(s *delay.Stats) float64 { return s.Overdue.Seconds() })
	t.counter("scheduled_total", "Calls of Schedule, ScheduleAt and Reschedule that took effect.",
		func(s *delay.Stats) float64 { return float64(s.Scheduled) })
	t.counter("cancelled_total", "Calls of Cancel that removed a task.",
		func(s *delay.Stats) float64 { return float64(s.Cancelled) })
	t.outcomes("attempts_total", "Attempts that have ended.", map[string]func(*delay.Stats) int64{
		string(delay.OutcomeDone):       func(s *delay.Stats) int64 { return s.Done },
		string(delay.OutcomeRetried):    func(s *delay.Stats) int64 { return s.Retried },
		string(delay.OutcomeExhausted):  func(s *delay.Stats) int64 { return s.Exhausted },
		string(delay.OutcomeHandedBack): func(s *delay.Stats) int64 { return s.HandedBack },
		string(delay.OutcomeLost):       func(s *delay.Stats) int64 { return s.Lost },
	})
	t.counters("kind", "incidents_total", "Tasks that have failed or were removed outside of their attempts.",
		map[string]func(*delay.Stats) int64{
			string(delay.IncidentLostTooOften): func(s *delay.Stats) int64 { return s.LostTooOften },
			string(delay.IncidentDeleted):      func(s *delay.Stats) int64 { return s.Deleted },
			string(delay.IncidentNoPayload):    func(s *delay.Stats) int64 { return s.NoPayload },
		})
	t.gauge("last_error_timestamp_seconds", "When a query, renewal or call failed last, 0 if none did.",
		func(s *delay.Stats) float64 {
			if s.Err == nil {
				return 0
			}
			return float64(s.ErrAt.UnixMilli()) / 1000
		})
	t.histogram("lateness_seconds", "Time from the due time of a task to the start of its handler.",
		func(s *delay.Stats) wheel.Histogram { return s.Late })
	t.histogram("attempt_seconds", "Time that handlers took.",
		func(s *delay.Stats) wheel.Histogram { return s.Took })
	addRenewals(t, "renewal_", func(s *delay.Stats) *renewal.Stats { return &s.Renewal })
	return t.collector(c.Stats)
}

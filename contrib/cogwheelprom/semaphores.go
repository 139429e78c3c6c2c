package cogwheelprom

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

type semaphoreSnapshot = snapshot[semaphore.Stats]

// NewSemaphoreCollector returns a collector for a Client of package semaphore, with the label client="name".
func NewSemaphoreCollector(name string, c *semaphore.Client) prometheus.Collector {
	t := newTable[semaphoreSnapshot]("semaphore", "client", name)
	t.gauge("held_permits", "Leased permits held.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Held) })
	t.gauge("grants", "Grants of leased permits held; one grant is for one or more permits.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Grants) })
	t.gauge("waiting", "Calls that wait for permits.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Waiting) })
	t.gauge("oldest_hold_seconds", "Age of the oldest grant held, 0 without one.",
		func(s *semaphoreSnapshot) float64 { return s.oldestHold.Seconds() })
	t.gauge("oldest_wait_seconds", "How long the call has waited that waits longest, 0 without one.",
		func(s *semaphoreSnapshot) float64 { return s.oldestWait.Seconds() })
	t.counter("acquired_total", "Calls that got a grant of leased permits.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Acquired) })
	t.counter("contended_total", "Calls that found too few free permits.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Contended) })
	t.outcomes("failed_total", "Calls that ended without permits.", map[string]func(*semaphoreSnapshot) int64{
		"contended": func(s *semaphoreSnapshot) int64 { return s.Stats.Refused },
		"cancelled": func(s *semaphoreSnapshot) int64 { return s.Stats.Cancelled },
		"failed":    func(s *semaphoreSnapshot) int64 { return s.Stats.Failed - s.Stats.Refused - s.Stats.Cancelled },
	})
	t.counter("released_total", "Grants that were released by their holder.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Released) })
	t.counter("lost_total", "Grants that ended before their holder released them.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Lost) })
	t.counter("taken_permits_total", "Permits taken from counting semaphores.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Taken) })
	t.counter("returned_permits_total", "Permits returned to counting semaphores.",
		func(s *semaphoreSnapshot) float64 { return float64(s.Stats.Returned) })
	t.histogram("wait_seconds", "Time that the calls waited that got permits.",
		func(s *semaphoreSnapshot) wheel.Histogram { return s.Stats.Wait })
	t.histogram("hold_seconds", "Time that grants were held.",
		func(s *semaphoreSnapshot) wheel.Histogram { return s.Stats.Hold })
	addRenewals(t, "renewal_", func(s *semaphoreSnapshot) *renewal.Stats { return &s.Stats.Renewal })
	return t.collector(snapshotOf(c.Stats,
		c.Holds, func(h semaphore.Hold) time.Time { return h.Since },
		c.Waits, func(w semaphore.Wait) time.Time { return w.Since }))
}

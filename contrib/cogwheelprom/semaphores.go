package cogwheelprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// NewSemaphoreCollector returns a collector for a Client of package semaphore, with the label client="name".
func NewSemaphoreCollector(c *semaphore.Client, name string) prometheus.Collector {
	t := newTable[semaphore.Stats]("semaphore", "client", name)
	t.gauge("held_permits", "Leased permits held.",
		func(s *semaphore.Stats) float64 { return float64(s.Held) })
	t.gauge("grants", "Grants of leased permits held; one grant is for one or more permits.",
		func(s *semaphore.Stats) float64 { return float64(s.Grants) })
	t.gauge("waiting", "Calls that wait for permits.",
		func(s *semaphore.Stats) float64 { return float64(s.Waiting) })
	t.counter("acquired_total", "Calls that got a grant of leased permits.",
		func(s *semaphore.Stats) float64 { return float64(s.Acquired) })
	t.counter("contended_total", "Calls that found too few free permits.",
		func(s *semaphore.Stats) float64 { return float64(s.Contended) })
	t.counter("failed_total", "Calls that ended without permits.",
		func(s *semaphore.Stats) float64 { return float64(s.Failed) })
	t.counter("released_total", "Grants that were released by their holder.",
		func(s *semaphore.Stats) float64 { return float64(s.Released) })
	t.counter("lost_total", "Grants that ended before their holder released them.",
		func(s *semaphore.Stats) float64 { return float64(s.Lost) })
	t.counter("taken_permits_total", "Permits taken from counting semaphores.",
		func(s *semaphore.Stats) float64 { return float64(s.Taken) })
	t.counter("returned_permits_total", "Permits returned to counting semaphores.",
		func(s *semaphore.Stats) float64 { return float64(s.Returned) })
	t.histogram("wait_seconds", "Time that the calls waited that got permits.",
		func(s *semaphore.Stats) wheel.Histogram { return s.Wait })
	t.histogram("hold_seconds", "Time that grants were held.",
		func(s *semaphore.Stats) wheel.Histogram { return s.Hold })
	addRenewals(t, "renewal_", func(s *semaphore.Stats) *renewal.Stats { return &s.Renewal })
	return t.collector(c.Stats)
}

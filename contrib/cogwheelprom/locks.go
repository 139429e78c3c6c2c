package cogwheelprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// NewLockCollector returns a collector for a *redislock.Client or a *redislock.Quorum, with the label
// client="name".
func NewLockCollector(c interface{ Stats() redislock.Stats }, name string) prometheus.Collector {
	t := newTable[redislock.Stats]("redislock", "client", name)
	t.gauge("held", "Locks held.",
		func(s *redislock.Stats) float64 { return float64(s.Held) })
	t.gauge("waiting", "Calls that wait for a lock.",
		func(s *redislock.Stats) float64 { return float64(s.Waiting) })
	t.counter("acquired_total", "Calls that got the lock.",
		func(s *redislock.Stats) float64 { return float64(s.Acquired) })
	t.counter("contended_total", "Calls that found the lock held by another.",
		func(s *redislock.Stats) float64 { return float64(s.Contended) })
	t.counter("failed_total", "Calls that ended without the lock.",
		func(s *redislock.Stats) float64 { return float64(s.Failed) })
	t.counter("released_total", "Locks that were released by their holder.",
		func(s *redislock.Stats) float64 { return float64(s.Released) })
	t.counter("lost_total", "Locks that ended before their holder released them.",
		func(s *redislock.Stats) float64 { return float64(s.Lost) })
	t.histogram("wait_seconds", "Time that the calls waited that got the lock.",
		func(s *redislock.Stats) wheel.Histogram { return s.Wait })
	t.histogram("hold_seconds", "Time that locks were held.",
		func(s *redislock.Stats) wheel.Histogram { return s.Hold })
	addRenewals(t, "renewal_", func(s *redislock.Stats) *renewal.Stats { return &s.Renewal })
	return t.collector(c.Stats)
}

package cogwheelprom

import (
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

type lockSnapshot = snapshot[redislock.Stats]

// LockClient is a *redislock.Client or a *redislock.Quorum.
type LockClient interface {
	Stats() redislock.Stats
	Holds() iter.Seq[redislock.Hold]
	Waits() iter.Seq[redislock.Wait]
}

// NewLockCollector returns a collector for the locks of a client, with the label client="name".
func NewLockCollector(name string, c LockClient) prometheus.Collector {
	t := newTable[lockSnapshot]("redislock", "client", name)
	t.gauge("held", "Locks held.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Held) })
	t.gauge("waiting", "Calls that wait for a lock.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Waiting) })
	t.gauge("oldest_hold_seconds", "Age of the oldest lock held, 0 without one.",
		func(s *lockSnapshot) float64 { return s.oldestHold.Seconds() })
	t.gauge("oldest_wait_seconds", "How long the call has waited that waits longest, 0 without one.",
		func(s *lockSnapshot) float64 { return s.oldestWait.Seconds() })
	t.counter("acquired_total", "Calls that got the lock.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Acquired) })
	t.counter("contended_total", "Calls that found the lock held by another.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Contended) })
	t.outcomes("failed_total", "Calls that ended without the lock.", map[string]func(*lockSnapshot) int64{
		"contended": func(s *lockSnapshot) int64 { return s.Stats.Refused },
		"cancelled": func(s *lockSnapshot) int64 { return s.Stats.Cancelled },
		"failed":    func(s *lockSnapshot) int64 { return s.Stats.Failed - s.Stats.Refused - s.Stats.Cancelled },
	})
	t.counter("released_total", "Locks that were released by their holder.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Released) })
	t.counter("lost_total", "Locks that ended before their holder released them.",
		func(s *lockSnapshot) float64 { return float64(s.Stats.Lost) })
	t.histogram("wait_seconds", "Time that the calls waited that got the lock.",
		func(s *lockSnapshot) wheel.Histogram { return s.Stats.Wait })
	t.histogram("hold_seconds", "Time that locks were held.",
		func(s *lockSnapshot) wheel.Histogram { return s.Stats.Hold })
	addRenewals(t, "renewal_", func(s *lockSnapshot) *renewal.Stats { return &s.Stats.Renewal })
	return t.collector(snapshotOf(c.Stats,
		c.Holds, func(h redislock.Hold) time.Time { return h.Since },
		c.Waits, func(w redislock.Wait) time.Time { return w.Since }))
}

package cogwheelprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// NewLimitCollector returns a collector for a Client of package ratelimit, with the label client="name".
func NewLimitCollector(name string, c *ratelimit.Client) prometheus.Collector {
	t := newTable[ratelimit.Stats]("ratelimit", "client", name)
	t.counter("allowed_total", "Calls that were granted their permits, also those that waited.",
		func(s *ratelimit.Stats) float64 { return float64(s.Allowed) })
	for shadow, value := range map[string]func(*ratelimit.Stats) int64{
		"false": func(s *ratelimit.Stats) int64 { return s.Denied - s.ShadowDenied },
		"true":  func(s *ratelimit.Stats) int64 { return s.ShadowDenied },
	} {
		t.counterWith(t.with("shadow", shadow), "denied_total",
			"Calls that were denied, and with shadow=\"true\" those that WithShadow let pass all the same.",
			func(s *ratelimit.Stats) float64 { return float64(value(s)) })
	}
	t.outcomes("failed_total", "Calls that returned an error, or would have without WithShadow.",
		map[string]func(*ratelimit.Stats) int64{
			"cancelled": func(s *ratelimit.Stats) int64 { return s.Cancelled },
			"failed":    func(s *ratelimit.Stats) int64 { return s.Failed - s.Cancelled },
		})
	t.counter("local_total", "Calls that were granted or denied without asking Redis.",
		func(s *ratelimit.Stats) float64 { return float64(s.Local) })
	t.counter("degraded_total", "Calls that the policy decided, because Redis did not answer.",
		func(s *ratelimit.Stats) float64 { return float64(s.Degraded) })
	t.counter("scripts_total", "Scripts sent to Redis.",
		func(s *ratelimit.Stats) float64 { return float64(s.Scripts) })
	t.counter("call_failures_total", "Calls to Redis that were not answered.",
		func(s *ratelimit.Stats) float64 { return float64(s.Failures) })
	t.gauge("waiting", "Calls that wait for permits.",
		func(s *ratelimit.Stats) float64 { return float64(s.Waiting) })
	t.gauge("keys", "Keys that are remembered in memory.",
		func(s *ratelimit.Stats) float64 { return float64(s.Keys) })
	t.gauge("breaker_open", "1 while the policy decides instead of Redis for the keys of some node, else 0.",
		func(s *ratelimit.Stats) float64 {
			if s.Down {
				return 1
			}
			return 0
		})
	t.histogram("wait_seconds", "Time that the calls waited that got their permits by waiting.",
		func(s *ratelimit.Stats) wheel.Histogram { return s.Wait })
	t.histogram("call_seconds", "Time that calls to Redis took, each with one or more scripts.",
		func(s *ratelimit.Stats) wheel.Histogram { return s.Took })
	return t.collector(c.Stats)
}

// Package cogwheelprom exports the Stats of wheels and clients as metrics for Prometheus.
//
//	registry.MustRegister(
//		cogwheelprom.NewWheelCollector(w, "main"),
//		cogwheelprom.NewLockCollector(locks, "orders"),
//	)
//
// There is one collector for each object; making one for a nil object panics. The name that it is given is
// the value of the only label of its metrics: wheel="main", client="orders". So the number of series does
// not grow with the number of locks, keys or holders. A registry refuses a second object of the same kind
// under the same name; a lock client and a limit client may both be "orders".
//
// A collector takes one snapshot of the Stats when metrics are gathered, and costs nothing in between. Gauges
// are 0 after the object was closed; unregister the collector when the object is given up.
//
// The histograms have every second bucket of a wheel.Histogram from 64 µs to 72 minutes, so a quantile is exact
// to a factor of four. They tell seconds apart from milliseconds, not 10 ms from 15 ms.
//
// dashboard.json is a dashboard for Grafana. docs/observability.md lists the metrics.
package cogwheelprom

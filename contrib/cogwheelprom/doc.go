// Package cogwheelprom exports the Stats of wheels and clients as metrics for Prometheus.
//
//	registry.MustRegister(
//		cogwheelprom.NewWheelCollector("main", w),
//		cogwheelprom.NewLockCollector("orders", locks),
//	)
//
// Each object needs a collector; making one for a nil object panics. The name of the collector is the value of
// a label of its metrics: wheel="main", client="orders". Counters of failed calls have a second label, outcome:
// "contended", "cancelled" or "failed"; that of attempts of tasks has a delay.Outcome. So the number of series does not
// grow with the number of locks, keys, holders or tasks. A registry refuses a second object of the same kind under the
// same name; a lock client and a limit client may both be "orders".
//
// When metrics are gathered, a collector takes one snapshot of the Stats, and reads each hold and each wait for the age
// of the oldest. It costs nothing in between. After the object was closed, its gauges are 0, except the longest
// callback of a wheel and the time of the last error of tasks; then unregister the collector.
//
// The histograms have every second bucket of a wheel.Histogram from 64 µs to 72 minutes, so a quantile is exact
// to a factor of four. They tell seconds apart from milliseconds, not 10 ms from 15 ms.
//
// dashboard.json is a dashboard for Grafana, and alerts.yml has alerting rules for Prometheus, each with a description
// that names what to look at. docs/observability.md lists the metrics and the alerts.
package cogwheelprom

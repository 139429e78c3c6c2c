package cogwheelprom_test

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelprom"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func Example() { //nolint:testableexamples // the clients need a Redis
	var ( // made elsewhere, by New of each package
		registry   *prometheus.Registry
		w          *wheel.Wheel
		locks      *redislock.Client
		limits     *ratelimit.Client
		semaphores *semaphore.Client
		delays     *delay.Client
	)

	registry.MustRegister(
		cogwheelprom.NewWheelCollector("main", w),
		cogwheelprom.NewLockCollector("orders", locks),
		cogwheelprom.NewLimitCollector("api", limits),
		cogwheelprom.NewSemaphoreCollector("reports", semaphores),
		cogwheelprom.NewDelayCollector("orders", delays),
	)
}

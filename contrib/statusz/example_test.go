package statusz_test

import (
	"net/http"

	"github.com/cogwheel-go/cogwheel/contrib/statusz"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func Example() { //nolint:testableexamples // the clients need a Redis
	var ( // made elsewhere, by New of each package
		mux        *http.ServeMux
		w          *wheel.Wheel
		locks      *redislock.Client
		limits     *ratelimit.Client
		semaphores *semaphore.Client
		delays     *delay.Client
	)

	mux.Handle("GET /debug/cogwheel", statusz.Handler(
		statusz.Wheel("main", w),
		statusz.Locks("orders", locks),
		statusz.Limits("api", limits),
		statusz.Semaphores("reports", semaphores),
		statusz.Delays("orders", delays),
	))
}

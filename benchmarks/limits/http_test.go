package limits_test

import (
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	store "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// BenchmarkMiddleware is 64 requests at a time of 10 000 clients, each with a limit of its own, through the middleware of
// cogwheel and that of ulule/limiter. Both answer with X-RateLimit fields. It takes turns, as BenchmarkVersus does: x is
// how many requests a second were served for one of ulule/limiter's, and cpu how much processor time of this process
// a request took for that of one of ulule/limiter's.
func BenchmarkMiddleware(b *testing.B) {
	const clients, atATime = 10_000, 64
	perRound := clients
	if !full {
		perRound /= 20
	}
	c, rdb, _ := newClient(b)
	limit := ratelimit.PerHour(1_000_000)
	base := redistest.Name(b)
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	key := func(r *http.Request) string { return r.Header.Get("Client") }
	limited := func(opts ...ratelimit.LimiterOption) http.Handler {
		k := c.Limiter(base, limit, opts...)
		keyOf := func(r *http.Request) (string, bool) { return key(r), true }
		return httplimit.New(k, keyOf, httplimit.WithFields(httplimit.XRateLimitFields))(served)
	}
	theirs, err := store.NewStoreWithOptions(rdb, limiter.StoreOptions{Prefix: base})
	if err != nil {
		b.Fatal(err)
	}
	rate := limiter.Rate{Period: limit.Per, Limit: limit.Rate}
	const peer = "ulule"
	all := []struct {
		name    string
		handler http.Handler
	}{
		{"cogwheel", limited()},
		{"cogwheel-window", limited(ratelimit.WithAlgorithm(ratelimit.FixedWindow))},
		{peer, stdlib.NewMiddleware(limiter.New(theirs, rate), stdlib.WithKeyGetter(key)).Handler(served)},
	}
	requests := make([]*http.Request, clients)
	for i := range requests {
		requests[i], err = http.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil)
		if err != nil {
			b.Fatal(err)
		}
		requests[i].Header.Set("Client", fmt.Sprint(i))
	}
	took, spent := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		all = append(all[1:], all[0]) // none is always the first
		for _, p := range all {
			began, cpu := time.Now(), processorTime(b)
			var running sync.WaitGroup
			for g := range atATime {
				running.Go(func() {
					for i := g; i < perRound; i += atATime {
						w := answer{header: http.Header{}}
						if p.handler.ServeHTTP(&w, requests[i]); w.status != http.StatusNoContent {
							b.Errorf("%s: %d", p.name, w.status)
							return
						}
					}
				})
			}
			running.Wait()
			took[p.name] = append(took[p.name], time.Since(began).Seconds())
			spent[p.name] = append(spent[p.name], processorTime(b))
			last := len(spent[p.name]) - 1
			spent[p.name][last] -= cpu
		}
	}
	for _, p := range all {
		faster, cheaper := make([]float64, b.N), make([]float64, b.N)
		for i := range b.N {
			faster[i] = took[peer][i] / took[p.name][i]
			cheaper[i] = spent[p.name][i] / spent[peer][i]
		}
		b.ReportMetric(median(faster), p.name+":x")
		b.ReportMetric(median(cheaper), p.name+":cpu")
	}
	b.ReportMetric(0, "ns/op")
}

// answer is a response without a connection.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }

// processorTime is that of this process, in seconds.
func processorTime(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// newLimits returns the Client that a process makes once: ratelimit.New(rdb). It is closed after all examples.
func newLimits() *ratelimit.Client {
	limits, err := ratelimit.New(redistest.Open(), ratelimit.WithTimeout(redistest.Patience))
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(limits.Close)
	return limits
}

// request sends a request to a handler.
func request(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	return w
}

// A limit of two requests for each address that connects. Clients are told where they stand.
func Example() {
	limits := newLimits()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

	perAddress := limits.Limiter("http", ratelimit.PerHour(2))
	handler := httplimit.New(perAddress, httplimit.ByRemoteAddr)(mux) // http.ListenAndServe(":8080", handler)

	response := request(handler, "/")
	fmt.Println(response.Code, response.Header().Get("RateLimit-Policy"), response.Header().Get("RateLimit"))
	response = request(handler, "/")
	fmt.Println(response.Code, response.Body)
	response = request(handler, "/")
	fmt.Println(response.Code, "Retry-After is set:", response.Header().Get("Retry-After") != "")
	// Output:
	// 200 "default";q=2;w=3600 "default";r=1;t=1800
	// 200 hello
	// 429 Retry-After is set: true
}

// One address is one client: the port does not count, and of an IPv6 address only the network.
func ExampleByRemoteAddr() {
	for _, addr := range []string{"192.0.2.7:50001", "192.0.2.7:50002", "[2001:db8:1:2::3]:443", "@"} {
		key, limited := httplimit.ByRemoteAddr(&http.Request{RemoteAddr: addr})
		fmt.Printf("%q %t\n", key, limited)
	}
	// Output:
	// "192.0.2.7" true
	// "192.0.2.7" true
	// "2001:db8:1:2::" true
	// "" false
}

// Behind proxies the client is the last address that a trusted one has seen. What the client itself writes into
// X-Forwarded-For does not count.
func ExampleByForwarded() {
	key := httplimit.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
	for _, forwarded := range []string{"198.51.100.7", "203.0.113.1, 198.51.100.7", "198.51.100.7, 10.0.0.3"} {
		client, _ := key(&http.Request{
			RemoteAddr: "10.0.0.1:4711", // the proxy
			Header:     http.Header{"X-Forwarded-For": {forwarded}},
		})
		fmt.Println(client)
	}
	// Output:
	// 198.51.100.7
	// 198.51.100.7
	// 198.51.100.7
}

// A KeyFunc may limit by whatever a request shows. Here, requests with a token count for the token, those
// without for their address, and health checks are not limited.
func ExampleKeyFunc() {
	key := func(r *http.Request) (string, bool) {
		if r.URL.Path == "/healthz" {
			return "", false
		}
		if token := r.Header.Get("Authorization"); token != "" { // checked by a handler around this one
			return "token " + token, true
		}
		return httplimit.ByRemoteAddr(r)
	}
	perClient := newLimits().Limiter("api", ratelimit.PerHour(1))
	handler := httplimit.New(perClient, key)(http.NotFoundHandler())
	fmt.Println(request(handler, "/", "Authorization", "ada").Code, request(handler, "/", "Authorization", "ada").Code)
	fmt.Println(request(handler, "/", "Authorization", "bob").Code, request(handler, "/").Code)
	fmt.Println(request(handler, "/healthz").Code, request(handler, "/healthz").Code)
	// Output:
	// 404 429
	// 404 404
	// 404 404
}

// Any type with these two methods is a Limiter: here, one that limits nothing on Sundays.
func ExampleLimiter() {
	perClient := newLimits().Limiter("api", ratelimit.PerHour(1))
	sunday := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	limiter := exceptSundays{perClient, func() time.Time { return sunday }}

	handler := httplimit.New(limiter, httplimit.ByRemoteAddr)(http.NotFoundHandler())
	fmt.Println(request(handler, "/").Code, request(handler, "/").Code)
	// Output: 404 404
}

type exceptSundays struct {
	*ratelimit.Limiter
	now func() time.Time
}

func (l exceptSundays) AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error) {
	if l.now().Weekday() == time.Sunday {
		return ratelimit.Result{Allowed: true, Source: ratelimit.SourceDegraded}, nil // no RateLimit field
	}
	return l.Limiter.AllowN(ctx, key, n)
}

// Requests may have different costs.
func ExampleWithCost() {
	perAddress := newLimits().Limiter("search", ratelimit.PerHour(10))
	handler := httplimit.New(perAddress, httplimit.ByRemoteAddr,
		httplimit.WithName("search"),
		httplimit.WithCost(func(r *http.Request) int64 {
			if r.URL.Query().Has("everything") {
				return 8
			}
			return 1
		}),
	)(http.NotFoundHandler())
	for _, path := range []string{"/?everything", "/?everything", "/"} {
		response := request(handler, path)
		fmt.Println(path, response.Code, response.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// /?everything 404 "search";q=10;w=3600
	// /?everything 429 "search";q=10;w=3600
	// / 404 "search";q=10;w=3600
}

// WithDenied answers in the format of the service. Retry-After is set already.
func ExampleWithDenied() {
	perAddress := newLimits().Limiter("api", ratelimit.PerHour(1))
	handler := httplimit.New(perAddress, httplimit.ByRemoteAddr,
		httplimit.WithDenied(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"title":"too many requests"}`))
		})),
	)(http.NotFoundHandler())
	request(handler, "/")
	response := request(handler, "/")
	fmt.Println(response.Code, response.Body)
	// Output: 429 {"title":"too many requests"}
}

// WithFailed answers when Redis is down. To serve requests all the same, set a policy of the ratelimit.Client.
func ExampleWithFailed() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	failed := func(w http.ResponseWriter, r *http.Request, err error) {
		log.Printf("%s: %v", r.URL.Path, err)
		http.Error(w, "please try again in a minute", http.StatusServiceUnavailable)
	}
	perAddress := limits.Limiter("api", ratelimit.PerHour(1))
	handler := httplimit.New(perAddress, httplimit.ByRemoteAddr, httplimit.WithFailed(failed))(http.NotFoundHandler())
	response := request(handler, "/")
	fmt.Print(response.Code, " ", response.Body)
	// Output: 503 please try again in a minute
}

// A batch costs as much as it has parts. Responses have a form that the clients know.
func ExampleOption() {
	perAddress := newLimits().Limiter("api", ratelimit.PerHour(10))
	problem := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"title":"too many requests"}`))
	}
	failed := func(w http.ResponseWriter, r *http.Request, err error) {
		log.Printf("%s: %v", r.URL.Path, err)
		w.Header().Set("Retry-After", "5")
		http.Error(w, "please try again soon", http.StatusServiceUnavailable)
	}
	limited := httplimit.New(perAddress, httplimit.ByRemoteAddr,
		httplimit.WithCost(func(r *http.Request) int64 { return int64(max(1, len(r.URL.Query()["id"]))) }), // by the ids
		httplimit.WithDenied(http.HandlerFunc(problem)),
		httplimit.WithFailed(failed),
	)
	handler := limited(http.NotFoundHandler())
	for range 4 {
		response := request(handler, "/?id=1&id=2&id=3")
		fmt.Println(response.Code, response.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 404 "default";q=10;w=3600
	// 404 "default";q=10;w=3600
	// 404 "default";q=10;w=3600
	// 429 "default";q=10;w=3600
}

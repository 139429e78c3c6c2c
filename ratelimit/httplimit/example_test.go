package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

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

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

// request sends a request to a handler.
func request(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	return w
}

// show prints what a client gets for a request.
func show(h http.Handler, from, user string, fields ...string) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-For", from)
	r.Header.Set("User", user)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Code)
	for _, field := range fields {
		if value := w.Header().Get(field); value != "" {
			fmt.Printf(" %s: %s", field, value)
		}
	}
	fmt.Println()
}

// Each address may send two requests at once, and then one every 30 seconds.
func ExampleNew() {
	limits := newLimits()
	perAddress := limits.Limiter("api", ratelimit.PerMinute(2))
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	h := httplimit.New(perAddress, httplimit.ByForwarded(proxies))(hello)
	for range 3 {
		show(h, "192.0.2.1", "", "RateLimit-Policy", "Retry-After")
	}
	show(h, "192.0.2.2", "", "RateLimit")
	// Output:
	// 200 RateLimit-Policy: "default";q=2;w=60
	// 200 RateLimit-Policy: "default";q=2;w=60
	// 429 RateLimit-Policy: "default";q=2;w=60 Retry-After: 30
	// 200 RateLimit: "default";r=1;t=30
}

// A limit for each user and one for the service: a request is charged to both or to none.
func ExampleNewAll() {
	limits := newLimits()
	perUser := limits.Limiter("user", ratelimit.PerHour(2))
	perService := limits.Limiter("service", ratelimit.PerHour(3))
	h := httplimit.NewAll(limits, func(r *http.Request) []ratelimit.Part {
		return []ratelimit.Part{perUser.Part(r.Header.Get("User")), perService.Part("mail")}
	}, httplimit.WithName("mail"))(hello)
	for _, user := range []string{"ada", "ada", "ada", "bob", "bob"} {
		show(h, "", user, "RateLimit")
	}
	// Output:
	// 200 RateLimit: "mail-1";r=1;t=1800, "mail-2";r=2;t=1200
	// 200 RateLimit: "mail-1";r=0;t=3600, "mail-2";r=1;t=2400
	// 429 RateLimit: "mail-1";r=0;t=3600, "mail-2";r=1;t=2400
	// 200 RateLimit: "mail-1";r=1;t=1800, "mail-2";r=0;t=3600
	// 429 RateLimit: "mail-1";r=1;t=1800, "mail-2";r=0;t=3600
}

// Each tenant has the limit of its plan. Redis stores nothing for the plans.
func ExampleNewPerKey() {
	limits := newLimits()
	plans := map[string]ratelimit.Limit{"ada": ratelimit.PerHour(1000), "bob": ratelimit.PerHour(10)}
	perTenant := limits.Limiter("tenant", ratelimit.PerHour(1)) // the limit of tenants without a plan
	h := httplimit.NewPerKey(perTenant, func(r *http.Request) (key string, limit ratelimit.Limit, limited bool) {
		tenant := r.Header.Get("User")
		plan, isKnown := plans[tenant]
		if !isKnown {
			plan = perTenant.Limit()
		}
		return tenant, plan, true
	}, httplimit.WithFields(httplimit.XRateLimitFields))(hello)
	for _, tenant := range []string{"ada", "bob", "cem", "cem"} {
		show(h, "", tenant, "X-RateLimit-Limit", "X-RateLimit-Remaining")
	}
	// Output:
	// 200 X-RateLimit-Limit: 1000 X-RateLimit-Remaining: 999
	// 200 X-RateLimit-Limit: 10 X-RateLimit-Remaining: 9
	// 200 X-RateLimit-Limit: 1 X-RateLimit-Remaining: 0
	// 429 X-RateLimit-Limit: 1 X-RateLimit-Remaining: 0
}

// A router whose handlers are not those of net/http asks for the decision alone.
func ExampleMiddleware_Decide() {
	limits := newLimits()
	limited := httplimit.New(limits.Limiter("api", ratelimit.PerMinute(1)), httplimit.ByRemoteAddr)
	for range 2 {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil) // those of the router
		if limited.Decide(w, r) {
			_, _ = w.WriteString("hello") // the router goes on to the handler
		}
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// 200 hello
	// 429 too many requests
}

// The handler for CORS is around the limit. So a preflight request is not counted, and a script of another origin can
// read that it was denied, and for how long it has to wait.
func ExampleMiddleware_cors() {
	perAddress := newLimits().Limiter("api", ratelimit.PerMinute(1))
	limited := httplimit.New(perAddress, httplimit.ByRemoteAddr)(hello)
	cors := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // or a package for CORS
		w.Header().Set("Access-Control-Allow-Origin", "https://app.example.com")
		w.Header().Set("Access-Control-Expose-Headers", "RateLimit, RateLimit-Policy, Retry-After")
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		limited.ServeHTTP(w, r)
	})
	for _, method := range []string{"OPTIONS", "GET", "OPTIONS", "GET"} {
		w := httptest.NewRecorder()
		cors.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		fmt.Printf("%s %d retry after %q\n", method, w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// OPTIONS 204 retry after ""
	// GET 200 retry after ""
	// OPTIONS 204 retry after ""
	// GET 429 retry after "60"
}

// The requests of a client wait for a limit for each host, and for the time that a host has asked for.
func ExampleNewTransport() {
	limits := newLimits()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()

	perHost := limits.Limiter("outgoing", ratelimit.PerSecond(10))
	host := func(r *http.Request) (string, bool) { return r.URL.Host, true }
	client := &http.Client{
		Transport: httplimit.NewTransport(perHost, host, nil),
		Timeout:   10 * time.Second, // bounds the waits too
	}

	for range 2 {
		response, err := client.Get(server.URL)
		if errors.Is(err, ratelimit.ErrWouldExceedDeadline) {
			fmt.Println("not sent")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(response.StatusCode)
		_ = response.Body.Close()
	}
	// Output:
	// 429
	// not sent
}

// A KeyFunc may limit by whatever a request shows. Here, requests with a token count for the token, those
// without for their address, and health checks are not limited. Tokens do not stand in Redis, but their hashes.
func ExampleKeyFunc() {
	hash := ratelimit.HashKeys([]byte("at least 16 random bytes"))
	key := func(r *http.Request) (string, bool) {
		if r.URL.Path == "/healthz" {
			return "", false
		}
		if token := r.Header.Get("Authorization"); token != "" { // checked by a handler around this one
			return "token " + hash(token), true
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

// Behind a proxy that replaces a field of its own, the client is the address in it. Customers with an IPv6
// network of 56 bits count as one client.
func ExampleByAddress() {
	key := httplimit.ByAddress(httplimit.Address{
		Trusted:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Field:    "X-Real-IP",
		IPv6Bits: 56,
	})
	for _, r := range []*http.Request{
		{RemoteAddr: "10.0.0.1:4711", Header: http.Header{"X-Real-Ip": {"192.0.2.7"}}},
		{RemoteAddr: "10.0.0.1:4711", Header: http.Header{"X-Real-Ip": {"2001:db8:1:207::3"}}},
		{RemoteAddr: "198.51.100.7:4711", Header: http.Header{"X-Real-Ip": {"192.0.2.7"}}}, // no trusted proxy
	} {
		client, _ := key(r)
		fmt.Println(client)
	}
	// Output:
	// 192.0.2.7
	// 2001:db8:1:200::
	// 198.51.100.7
}

// A batch costs as much as it has parts. Responses have a form that the clients know.
func ExampleOption() {
	perAddress := newLimits().Limiter("api", ratelimit.PerHour(10))
	problem := func(w http.ResponseWriter, _ *http.Request, result ratelimit.Result) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = fmt.Fprintf(w, `{"title":"too many requests","limit":%d}`, result.Limit)
	}
	failed := func(w http.ResponseWriter, r *http.Request, err error) {
		log.Printf("%s: %v", r.URL.Path, err)
		w.Header().Set("Retry-After", "5")
		http.Error(w, "please try again soon", http.StatusServiceUnavailable)
	}
	limited := httplimit.New(perAddress, httplimit.ByRemoteAddr,
		httplimit.WithCost(func(r *http.Request) int64 { return int64(max(1, len(r.URL.Query()["id"]))) }), // by the ids
		httplimit.WithDenied(problem),
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

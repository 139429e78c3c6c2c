//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

const (
	perSecond = 40
	users     = 10
)

// hangTest prints what clients of an HTTP service see while its Redis hangs. It starts a redis-server, serves requests
// through httplimit with the policy FailOpen and default redis.Options, stops the server with SIGSTOP and resumes it later:
// once with requests without a deadline, and once with requests whose context ends after 50 ms. It fails if a request got
// status 503, or took longer than the limiter's timeout by more than late. It takes three times the duration of the hang.
func hangTest(timeout, hang, late time.Duration) error {
	for _, deadline := range []time.Duration{0, 50 * time.Millisecond} {
		found, err := serveThroughHang(timeout, hang, deadline)
		if err != nil {
			return err
		}
		fmt.Println(found)
		if found.failed > 0 || found.slowest > timeout+late {
			return errors.New("a request failed or took too long")
		}
	}
	return nil
}

// silent keeps go-redis from reporting each failed dial.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// hangFigures are what the clients of one scenario saw.
type hangFigures struct {
	deadline         time.Duration
	requests, failed int           // failed: other than 200 and 429
	slowest          time.Duration // request
	opened, closed   time.Duration // the breaker: after the server hung, and after it went on; 0 if it did not
}

func (f *hangFigures) String() string {
	deadline := "no deadline"
	if f.deadline > 0 {
		deadline = "deadline " + f.deadline.String()
	}
	return fmt.Sprintf("%-14s %4d requests, %3d failed, slowest %5d ms; breaker open after %4d ms, closed %4d ms after Redis was back",
		deadline, f.requests, f.failed, f.slowest.Milliseconds(), f.opened.Milliseconds(), f.closed.Milliseconds())
}

// serveThroughHang sends requests before, while and after Redis hangs.
func serveThroughHang(timeout, hang, deadline time.Duration) (found *hangFigures, err error) {
	server, err := startRedis()
	if err != nil {
		return nil, err
	}
	defer server.stop()
	rdb := redis.NewClient(&redis.Options{Addr: server.addr})
	defer rdb.Close()
	limits, err := ratelimit.New(rdb, ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithTimeout(timeout),
		ratelimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, limits.Close(context.Background())) }()
	url, stop, err := serve(limits, deadline)
	if err != nil {
		return nil, err
	}
	defer stop()

	found = &hangFigures{deadline: deadline}
	began := time.Now()
	stopAt, goOnAt, endAt := began.Add(hang/4), began.Add(hang/4+hang), began.Add(hang*3/2)
	events := make(chan error, 1)
	go func() { events <- stopAndContinue(server, limits, found, stopAt, goOnAt, endAt) }()
	var mu sync.Mutex
	var requests sync.WaitGroup
	for i := 0; time.Now().Before(endAt); i++ {
		requests.Go(func() {
			sent := time.Now()
			status := get(url, strconv.Itoa(i%users))
			took := time.Since(sent)
			mu.Lock()
			defer mu.Unlock()
			found.requests++
			found.slowest = max(found.slowest, took)
			if status != http.StatusOK && status != http.StatusTooManyRequests {
				found.failed++
			}
		})
		time.Sleep(time.Until(began.Add(time.Duration(i+1) * time.Second / perSecond)))
	}
	requests.Wait()
	return found, <-events
}

// serve serves on loopback, at most 100 requests a second to each user.
func serve(limits *ratelimit.Client, deadline time.Duration) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	byUser := func(r *http.Request) (string, bool) { return r.Header.Get("User"), true }
	limited := httplimit.New(limits.Limiter("hang", ratelimit.PerSecond(100)), byUser)(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if deadline > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), deadline)
			defer cancel()
			r = r.WithContext(ctx)
		}
		limited.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// get returns the status of one request, 0 if there is none.
func get(url, user string) int {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	r.Header.Set("User", user)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}

// stopAndContinue has the server hang, and notes when the breaker opens and closes.
func stopAndContinue(server *redisServer, limits *ratelimit.Client, found *hangFigures, stopAt, goOnAt, endAt time.Time) error {
	time.Sleep(time.Until(stopAt))
	if err := server.hang(); err != nil {
		return err
	}
	found.opened = awaitDown(limits, true, goOnAt)
	time.Sleep(time.Until(goOnAt))
	if err := server.resume(); err != nil {
		return err
	}
	found.closed = awaitDown(limits, false, endAt)
	return nil
}

// awaitDown returns how long it takes until the breaker is open, or closed; 0 if it is not so by then.
func awaitDown(limits *ratelimit.Client, down bool, by time.Time) time.Duration {
	for began := time.Now(); time.Now().Before(by); time.Sleep(time.Millisecond) {
		if limits.Stats().Down == down {
			return time.Since(began)
		}
	}
	return 0
}

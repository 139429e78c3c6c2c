package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	service "github.com/cogwheel-go/cogwheel/examples/service"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// asService makes the test binary run the program instead of its tests.
const asService = "TEST_RUN_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		service.Main()
		os.Exit(0)
	}
	redistest.Main(m)
}

// start starts a service that is stopped with the test.
func start(t *testing.T, redis string) service.Service {
	t.Helper()
	s, err := service.Start(t.Context(), redis)
	require.NoError(t, err)
	redistest.CloseWith(t, s.Stop)
	return s
}

// send sends a request and returns its status and body.
func send(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	status, body, err := try(t.Context(), method, url)
	require.NoError(t, err)
	return status, body
}

func try(ctx context.Context, method, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true // no connection is left for the search for leaks
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func TestService_OnTheEmbeddedServer(t *testing.T) {
	t.Parallel()
	requireServes(t, start(t, ""))
}

func TestService_OnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, second := start(t, server.Addr()), start(t, server.Addr())
	redistest.Poll(t, func() bool { // one leads and one waits
		a, b := first.Locks().Stats(), second.Locks().Stats()
		return a.Held+b.Held == 1 && a.Waiting+b.Waiting == 1
	})
	if second.Locks().Stats().Held == 1 {
		first, second = second, first
	}
	require.NoError(t, first.Stop(t.Context()))
	redistest.Poll(t, func() bool { return second.Locks().Stats().Held == 1 })
	requireServes(t, second)
}

// requireServes checks each endpoint of a service that has not been asked before.
func requireServes(t *testing.T, s service.Service) {
	t.Helper()
	status, body := send(t, http.MethodPost, s.API()+"/orders/42/ship")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, "order 42 is on its way\n", body)
	status, _ = send(t, http.MethodPost, s.API()+"/reports")
	require.Equal(t, http.StatusAccepted, status)
	redistest.Poll(t, func() bool { return s.Semaphores().Stats().Acquired == 1 })
	for status != http.StatusTooManyRequests {
		status, _ = send(t, http.MethodPost, s.API()+"/nothing")
		require.Contains(t, []int{http.StatusNotFound, http.StatusTooManyRequests}, status)
	}

	status, body = send(t, http.MethodGet, s.Ops()+"/healthz")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", body)
	status, body = send(t, http.MethodGet, s.Ops()+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `cogwheel_redislock_held{client="service"} 1`, "the leader's")
	require.Contains(t, body, `cogwheel_semaphore_acquired_total{client="service"} 1`)
	require.Regexp(t, `cogwheel_ratelimit_denied_total\{client="service"\} [1-9]`, body)
	require.Regexp(t, `cogwheel_wheel_lateness_seconds_count\{wheel="service"\} [1-9]`, body)
	status, body = send(t, http.MethodGet, s.Ops()+"/debug/cogwheel")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "service:leader")
	_, body = send(t, http.MethodGet, s.Ops()+"/debug/cogwheel?format=json")
	require.True(t, json.Valid([]byte(body)))
	status, _ = send(t, http.MethodGet, s.API()+"/debug/cogwheel")
	require.NotEqual(t, http.StatusOK, status, "the API does not show it")
}

func TestService_ARequestEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	_, err := s.Locks().Mutex("order:7", redislock.WithLease(time.Minute)).Lock(t.Context())
	require.NoError(t, err)
	status, body := send(t, http.MethodPost, s.API()+"/orders/7/ship")
	require.Equal(t, http.StatusConflict, status, body)
}

func TestService_StopsGracefullyOnSIGTERM(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	server := redistest.Start(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asService+"=1", "REDIS_ADDR="+server.Addr(), "LISTEN=127.0.0.1:0", "OPS=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	logged := bufio.NewScanner(stderr)
	var api string
	for api == "" && logged.Scan() {
		if m := regexp.MustCompile(`msg=serving api=(\S+)`).FindStringSubmatch(logged.Text()); m != nil {
			api = "http://" + m[1]
		}
	}
	require.NotEmpty(t, api)

	rdb := server.Client(t)
	shipped := make(chan int, 1)
	go func() {
		status, _, _ := try(t.Context(), http.MethodPost, api+"/orders/1/ship")
		shipped <- status
	}()
	redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), "order:1", "service:leader").Val() == 2 })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, http.StatusOK, <-shipped, "a request in progress ends")
	var rest strings.Builder
	for logged.Scan() {
		rest.WriteString(logged.Text() + "\n")
	}
	require.NoError(t, cmd.Wait(), rest.String())
	require.Contains(t, rest.String(), "msg=stopped")
	require.Zero(t, rdb.Exists(context.Background(), "order:1", "service:leader").Val(), "the locks were released")
}

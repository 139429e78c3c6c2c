package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
func start(t *testing.T, redisURL string) service.Service {
	t.Helper()
	s, err := service.Start(t.Context(), redisURL)
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
	url := "redis://" + server.Addr()
	first, second := start(t, url), start(t, url)
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
	require.Regexp(t, `cogwheel_ratelimit_denied_total\{client="service",shadow="false"\} [1-9]`, body)
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

// process is the program in a process of its own.
type process struct {
	cmd *exec.Cmd
	api string
	ops string
	log *bufio.Scanner
}

// launch starts the program and returns once it serves. Each of env is a variable.
func launch(t *testing.T, env ...string) *process {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM")
	}
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	p.cmd.Env = append(append(os.Environ(), asService+"=1", "LISTEN=127.0.0.1:0", "OPS=127.0.0.1:0"), env...)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.log = bufio.NewScanner(stderr)
	var lines strings.Builder
	for p.api == "" {
		require.True(t, p.log.Scan(), lines.String())
		lines.WriteString(p.log.Text() + "\n")
		if m := regexp.MustCompile(`msg=serving api=(\S+) ops=(\S+)`).FindStringSubmatch(p.log.Text()); m != nil {
			p.api, p.ops = "http://"+m[1], "http://"+m[2]
		}
	}
	return p
}

// terminate sends SIGTERM.
func (p *process) terminate(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
}

// wait waits until the process has ended, and returns what it has logged since it served.
func (p *process) wait() (log string, err error) {
	var rest strings.Builder
	for p.log.Scan() {
		rest.WriteString(p.log.Text() + "\n")
	}
	return rest.String(), p.cmd.Wait()
}

func TestService_FinishesRequestsAndReportsOnSIGTERM(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	server := redistest.Start(t)
	p := launch(t, "REDIS_URL=redis://"+server.Addr())
	rdb := server.Client(t)
	const reports = 5 // two are made at a time
	for range reports {
		status, body := send(t, http.MethodPost, p.api+"/reports")
		require.Equal(t, http.StatusAccepted, status, body)
	}
	shipped := make(chan int, 1)
	go func() {
		status, _, _ := try(t.Context(), http.MethodPost, p.api+"/orders/1/ship")
		shipped <- status
	}()
	redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), "order:1", "service:leader").Val() == 2 })
	p.terminate(t)
	require.Equal(t, http.StatusOK, <-shipped, "a request in progress ends")
	log, err := p.wait()
	require.NoError(t, err, log)
	for i := range reports {
		require.Contains(t, log, fmt.Sprintf("msg=\"report made\" report=%d\n", i+1))
	}
	require.NotContains(t, log, "report lost")
	require.Contains(t, log, "msg=stopped")
	ctx := context.Background()
	require.Zero(t, rdb.Exists(ctx, "order:1", "service:leader").Val(), "the locks were released")
	require.Equal(t, []string{"service:reports"}, rdb.Keys(ctx, "service:*").Val(), "and the permits")
}

func TestService_EndsInItsGracePeriodWhileRedisHangs(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	server := redistest.Start(t)
	p := launch(t, "REDIS_URL=redis://"+server.Addr())
	rdb := server.Client(t)
	for range 3 {
		status, _ := send(t, http.MethodPost, p.api+"/reports")
		require.Equal(t, http.StatusAccepted, status)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _, _ = try(t.Context(), http.MethodPost, p.api+"/orders/1/ship")
	}()
	redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), "order:1", "service:leader").Val() == 2 })
	slow, err := net.Dial("tcp", strings.TrimPrefix(p.api, "http://"))
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("POST /orders/2/ship HTTP/1.1\r\nHost: api\r\nContent-Length: 10\r\n\r\n")) // and no body
	require.NoError(t, err)
	server.Pause()
	var log string
	took := redistest.Running(t, func() {
		p.terminate(t)
		log, _ = p.wait() // it could not release its locks, and says so
	})
	<-answered
	require.Less(t, took, service.Grace, log)
	for report := range 3 {
		require.Regexp(t, fmt.Sprintf(`msg="report (made|lost)" report=%d\b`, report+1), log, "each is accounted for")
	}
	server.Resume()
}

// Redis is often reached by TLS and with a password only.
func TestService_ConnectsByTLSWithAPassword(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("certificates are not taken from SSL_CERT_FILE here")
	}
	certificate, key := certify(t)
	server := redistest.Start(t, "--requirepass", "secret")
	addr := listenTLS(t, server, certificate, key)
	url := "rediss://:secret@" + addr + "/1"
	p := launch(t, "REDIS_URL="+url, "SSL_CERT_FILE="+certificate)
	status, body := send(t, http.MethodPost, p.api+"/orders/42/ship")
	require.Equal(t, http.StatusOK, status, body)
	status, body = send(t, http.MethodGet, p.ops+"/healthz")
	require.Equal(t, http.StatusOK, status, body)
	p.terminate(t)
	log, err := p.wait()
	require.NoError(t, err, log)

	for name, env := range map[string][]string{
		"a wrong password":       {"REDIS_URL=rediss://:wrong-secret@" + addr, "SSL_CERT_FILE=" + certificate},
		"an unknown certificate": {"REDIS_URL=" + url},
		"a bad URL":              {"REDIS_URL=rediss://:secret/part@" + addr},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(redistest.Within(t, redistest.Patience), os.Args[0])
			cmd.Env = append(append(os.Environ(), asService+"=1"), env...)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "service failed")
			require.NotContains(t, string(out), "secret", "no password is logged")
		})
	}
}

func TestHealth_ReflectsRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	health := service.NewHealth(server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true }))
	healthy := func() bool {
		w := httptest.NewRecorder()
		health.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code == http.StatusOK
	}
	health.Ping()
	require.True(t, healthy())
	server.Pause()
	for range 2 {
		health.Ping()
		require.True(t, healthy(), "after a ping or two without an answer")
	}
	health.Ping()
	require.False(t, healthy())
	server.Resume()
	health.Ping()
	require.True(t, healthy())
}

// A probe is answered at once, whatever Redis does.
func TestService_TellsThatRedisHangs(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	server := redistest.Start(t)
	s := start(t, "redis://"+server.Addr())
	healthz := func() (status int) {
		took := redistest.Running(t, func() { status, _ = send(t, http.MethodGet, s.Ops()+"/healthz") })
		require.Less(t, took, 500*time.Millisecond)
		return status
	}
	require.Equal(t, http.StatusOK, healthz())
	server.Pause()
	redistest.Poll(t, func() bool { return healthz() == http.StatusServiceUnavailable })
	server.Resume()
	redistest.Poll(t, func() bool { return healthz() == http.StatusOK })
}

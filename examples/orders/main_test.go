package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The order is closed once, although the process that took it was killed and two others serve the queue. A paid order
// stays paid.
// Guarantees: D2.
func TestOrders_AreClosedAfterAKill(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	program, server := build(t), redistest.Start(t)
	rdb, ctx := server.Client(t), t.Context()
	first := start(t, program, server)
	const orders = 20
	for i := range orders {
		require.Equal(t, http.StatusCreated, first.post(t, fmt.Sprintf("/orders/%d", i)))
	}
	require.Equal(t, http.StatusCreated, first.post(t, "/orders/0"), "a repeated request")
	require.Equal(t, http.StatusOK, first.post(t, "/orders/0/pay"))
	require.Equal(t, http.StatusOK, first.post(t, "/orders/0/pay"), "a repeated request")
	require.Equal(t, http.StatusNotFound, first.post(t, "/orders/none/pay"))
	require.Contains(t, first.get(t), "order 7 is open and closes in 1h0m0s\n")
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()

	delays, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, delays.Close)
	for i := range orders { // the hour is over
		pending, err := delays.Queue("orders").Reschedule(ctx, fmt.Sprint(i), 0)
		require.NoError(t, err)
		require.Equal(t, i != 0, pending, "order %d", i)
	}
	second, third := start(t, program, server), start(t, program, server)
	redistest.Poll(t, func() bool { return strings.Count(second.get(t), "is closed\n") == orders-1 })
	require.Contains(t, third.get(t), "order 0 is paid\n")
	require.Equal(t, http.StatusConflict, third.post(t, "/orders/7/pay"))
	require.Equal(t, http.StatusConflict, third.post(t, "/orders/7"))
	require.NoError(t, delays.Queue("orders").Schedule(ctx, "7", 0, nil)) // as after a lost lease
	redistest.Poll(t, func() bool {
		state, err := delays.Queue("orders").State(ctx, "7")
		return err == nil && state.Phase == delay.PhaseUnknown
	})
	stock, err := rdb.Get(ctx, "{orders}:stock").Int()
	require.NoError(t, err)
	require.Equal(t, -1, stock, "each order that was closed has given its item back once")
	for _, p := range []*process{second, third} {
		require.NoError(t, p.Process.Signal(os.Interrupt))
		require.NoError(t, p.Wait())
	}
}

// The demonstration needs no Redis.
func TestOrders_Demonstration(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	out, err := command(build(t)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	require.Regexp(t, `order 8 is open for 3s`+
		`[\s\S]*order 8 is paid`+
		`[\s\S]*order 7 is open for 3s`+
		`[\s\S]*process 1 is killed`+
		`[\s\S]*process 2: order 7 is closed`+
		`[\s\S]*order 7 is closed`+
		`[\s\S]*order 8 is paid\n$`, string(out))
}

func build(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no redis-server and no interrupt")
	}
	program := filepath.Join(t.TempDir(), "orders")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

func command(program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Env = append(os.Environ(), "REDIS_ADDR=")
	return c
}

// process is a running program.
type process struct {
	*exec.Cmd

	url string
}

// start starts a process whose orders close after an hour.
func start(t *testing.T, program string, server *redistest.Server) *process {
	t.Helper()
	p := &process{Cmd: command(program, "-redis", server.Addr(), "-listen", "127.0.0.1:0", "-after", "1h")}
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p.url = strings.TrimSpace(strings.TrimPrefix(line, "serving "))
	return p
}

func (p *process) post(t *testing.T, path string) int {
	t.Helper()
	status, _ := p.ask(t, http.MethodPost, path)
	return status
}

func (p *process) get(t *testing.T) string {
	t.Helper()
	status, body := p.ask(t, http.MethodGet, "/orders")
	require.Equal(t, http.StatusOK, status)
	return body
}

func (p *process) ask(t *testing.T, method, path string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), method, p.url+path, nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

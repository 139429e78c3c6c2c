package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// Guarantees: L12.
func TestTour(t *testing.T) {
	t.Parallel()
	program := build(t)
	server := redistest.Start(t)
	// A tour takes some time, so all of them start at once.
	embedded, remote := start(t, program, ""), start(t, program, server.Addr())
	interrupted := start(t, program, server.Addr())

	t.Run("ends when it is interrupted while a lock is held", func(t *testing.T) {
		select {
		case <-interrupted.waits:
		case <-interrupted.ended:
			require.Fail(t, "the tour ended before", "%s%s", &interrupted.out, &interrupted.errors)
		}
		require.NoError(t, interrupted.Process.Signal(os.Interrupt))
		<-interrupted.ended
		require.Equal(t, 1, interrupted.ProcessState.ExitCode())
		require.Equal(t, "tour: interrupted\n", interrupted.errors.String())
	})

	t.Run("a wrong address gives one line and exit code 1 within 5 seconds", func(t *testing.T) {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
		require.NoError(t, err)
		defer silent.Close()
		for _, addr := range []string{"127.0.0.1:1", silent.Addr().String(), "nowhere", "http://127.0.0.1:1"} {
			var tour *process
			require.Less(t, redistest.Running(t, func() {
				tour = start(t, program, addr)
				<-tour.ended
			}), 5*time.Second, addr)
			require.Equal(t, 1, tour.ProcessState.ExitCode(), addr)
			require.Regexp(t, `^tour: .*REDIS_ADDR.*\n$`, tour.errors.String())
			require.Empty(t, tour.out.String(), addr)
		}
	})

	t.Run("shows its steps with an embedded server", func(t *testing.T) {
		requireSteps(t, embedded)
		require.Contains(t, embedded.out.String(), "REDIS_ADDR is not set: using an embedded server")
	})

	t.Run("shows the same on a real Redis and leaves nothing there for longer than a day", func(t *testing.T) {
		requireSteps(t, remote)
		require.Contains(t, remote.out.String(), "Using the Redis at "+server.Addr())
		rdb := server.Client(t)
		keys, err := rdb.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			require.InDelta(t, 12*time.Hour, rdb.PTTL(t.Context(), key).Val(), float64(12*time.Hour), key)
		}
	})
}

func build(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGKILL and no interrupt")
	}
	program := filepath.Join(t.TempDir(), "tour")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// process is a running tour.
type process struct {
	*exec.Cmd
	out, errors strings.Builder
	waits       chan struct{} // closed when a worker waits for the lock of another
	ended       chan struct{}
}

func start(t *testing.T, program, addr string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program), waits: make(chan struct{}), ended: make(chan struct{})}
	p.Env = append(os.Environ(), "REDIS_ADDR="+addr)
	p.Stdout, p.Stderr = p, &p.errors
	require.NoError(t, p.Start())
	go func() {
		defer close(p.ended)
		_ = p.Wait() // the tests check the exit code
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	return p
}

// Write records the output of the tour.
func (p *process) Write(text []byte) (int, error) {
	const waits = " waits for the lock\n"
	before := strings.Contains(p.out.String(), waits)
	p.out.Write(text)
	if !before && strings.Contains(p.out.String(), waits) {
		close(p.waits)
	}
	return len(text), nil
}

// requireSteps checks that the output has the lines of each step, in order.
func requireSteps(t *testing.T, tour *process) {
	t.Helper()
	<-tour.ended
	out := tour.out.String()
	t.Log(out)
	require.Empty(t, tour.errors.String())
	require.Zero(t, tour.ProcessState.ExitCode())

	const (
		line = `[\s\S]*?\n +\d+\.\d{3}s  `
		row  = ` +[\d.]+m?s +[\d.]+m?s +\d+ MiB`
	)
	require.Regexp(t, `1\. A million timers`+
		`[\s\S]*?\n +wheel`+row+
		`\n +time\.AfterFunc`+row+
		line+`1000 timers fired .* none before`, out)
	require.Regexp(t, `2\. A lock`+
		line+`worker 1 locks`+
		line+`worker 2 waits`+
		line+`worker 1 has held the lock for two leases`+
		line+`worker 1: its context has ended`, out)
	require.Regexp(t, `its network hangs`+line+`worker 2 holds the lock`, out) // on a slow machine, this line may come first
	require.Regexp(t, `3\. A limit`+
		strings.Repeat(line+`process \d: request \d is allowed`, 5)+
		line+`process \d: request \d is (allowed|denied, and would be allowed in \d+ms)`+
		line+`process \d: request 7 is`+
		line+`process 1: request 8 has waited`, out)
	require.Regexp(t, `4\. Two permits`+
		line+`process \d: job \d begins`+
		line+`process \d: job \d begins`+
		line+`process \d: job \d ends`, out)
	require.Equal(t, 5, strings.Count(out, " ends\n"))
	require.Contains(t, out, "Next: docs/")
}

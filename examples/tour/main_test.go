package main_test

import (
	"context"
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

func TestTour(t *testing.T) {
	t.Parallel()
	program := build(t)
	server := redistest.Start(t)
	// A tour takes some time, so all of them start at once.
	embedded, remote := start(t, program, ""), start(t, program, server.Addr())
	interrupted, killed := start(t, program, ""), start(t, program, server.Addr())

	t.Run("its workers end with it when it is interrupted", func(t *testing.T) {
		requireWorkersEnd(t, interrupted, os.Interrupt)
		require.Equal(t, 1, interrupted.ProcessState.ExitCode())
		require.Equal(t, "tour: interrupted\n", interrupted.errors.String())
	})

	t.Run("its workers end with it when it is killed", func(t *testing.T) {
		requireWorkersEnd(t, killed, os.Kill)
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

	t.Run("shows the three steps with an embedded server", func(t *testing.T) {
		requireSteps(t, embedded)
		require.Contains(t, embedded.out.String(), "REDIS_ADDR is not set: using an embedded server")
	})

	t.Run("shows the same on a real Redis and leaves nothing there", func(t *testing.T) {
		requireSteps(t, remote)
		require.Contains(t, remote.out.String(), "Using the Redis at "+server.Addr())
		keys, err := server.Client(t).Keys(context.Background(), "*").Result()
		require.NoError(t, err)
		require.Empty(t, keys)
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
	workersWait chan struct{} // closed when one worker holds the lock and two wait for it
	ended       chan struct{} // closed when the tour and all processes that share its standard error have exited
}

func start(t *testing.T, program, addr string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program), workersWait: make(chan struct{}), ended: make(chan struct{})}
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
	before := strings.Count(p.out.String(), " waits\n")
	p.out.Write(text)
	if before < 2 && strings.Count(p.out.String(), " waits\n") == 2 {
		close(p.workersWait)
	}
	return len(text), nil
}

// requireSteps checks that the output has the required lines of each step, in order.
func requireSteps(t *testing.T, tour *process) {
	t.Helper()
	<-tour.ended
	out := tour.out.String()
	t.Log(out)
	require.Empty(t, tour.errors.String())
	require.Zero(t, tour.ProcessState.ExitCode())

	const line = `[\s\S]*?\n +\d+\.\d{3}s  `
	require.Regexp(t, `1\. Orders`+
		line+`order 2: paid in time`+
		line+`order 4: paid in time`+
		line+`order \d: unpaid, closed by its timer`+
		line+`order 5: the payment comes too late`, out)
	require.NotRegexp(t, `order [24]: unpaid`, out)
	require.Regexp(t, `2\. 100 000 timers`+
		line+`100000 timers scheduled`+
		line+`\.\.\. \d+ of 100000 fired`+
		line+`all of them fired`+
		`[\s\S]*p50 +p99 +max +goroutines`, out)
	require.Regexp(t, `3\. A lock`+
		line+`worker 1 \(process \d+\) holds the lock`+
		line+`worker [23] \(process \d+\) waits`+
		line+`worker 1: renewal \d+, held for [23]\.\d leases`+
		line+`worker 1 is killed`+
		line+`worker [23] takes over \d+(\.\d+)?m?s after the kill`+
		line+`worker [23] releases`+
		line+`worker [23] holds it`, out)
}

// requireWorkersEnd sends the signal while one worker holds the lock and two wait, and checks that the
// workers exit.
func requireWorkersEnd(t *testing.T, tour *process, signal os.Signal) {
	t.Helper()
	select {
	case <-tour.workersWait:
	case <-tour.ended:
		require.Fail(t, "the tour ended before its third step", "%s%s", &tour.out, &tour.errors)
	}
	// Less time than a worker needs to notice that its output is not read.
	require.Less(t, redistest.Running(t, func() {
		require.NoError(t, tour.Process.Signal(signal))
		select {
		case <-tour.ended: // not before the workers have exited: they share its standard error
		case <-time.After(redistest.Patience):
		}
	}), time.Second, "a worker outlives the tour")
}

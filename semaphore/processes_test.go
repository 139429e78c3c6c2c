package semaphore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The test binary runs itself as other processes. The environment tells a child its role and its
// parameters.
const (
	roleHold  = "hold"  // hold a leased permit until stdin ends
	roleSweep = "sweep" // see sweep_child_test.go

	childAddr  = "SEMAPHORE_TEST_ADDR"
	childName  = "SEMAPHORE_TEST_NAME"
	childKind  = "SEMAPHORE_TEST_KIND" // of a sweep
	childSeed  = "SEMAPHORE_TEST_SEED"
	childLease = safeLease
)

func runChild(role string) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	addr, name := os.Getenv(childAddr), os.Getenv(childName)
	w, err := wheel.New()
	if err != nil {
		return err
	}
	switch role {
	case roleSweep:
		seed, err := strconv.ParseUint(os.Getenv(childSeed), 10, 64)
		if err != nil {
			return err
		}
		return runSweeper(ctx, w, addr, name, os.Getenv(childKind), seed)
	case roleHold:
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		c, err := semaphore.New(rdb, semaphore.WithWheel(w))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close(ctx)) }()
		if _, err := c.Semaphore(name, 0, semaphore.WithLease(childLease)).Acquire(ctx, 1); err != nil {
			return err
		}
		fmt.Println("held")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}
	return fmt.Errorf("unknown role %q", role)
}

// process is a child that writes lines and ends when its stdin does. It is killed with the test.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Reader
}

func spawn(t testing.TB, role, addr, name string, env ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.CommandContext(t.Context(), self)}
	p.cmd.Env = append(os.Environ(), append(env, redistest.ChildEnv+"="+role, childAddr+"="+addr, childName+"="+name)...)
	p.cmd.Stderr = os.Stderr
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	return p
}

func (p *process) line() (string, error) {
	line, err := p.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Guarantees: S3.
func TestProcesses_PermitsOfAKilledHolderComeBack(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	l := c.Semaphore(name, 0)
	mustSetPermits(t, l, 1)
	holder := spawn(t, roleHold, redistest.Shared(t).Addr(), name)
	line, err := holder.line()
	require.NoError(t, err)
	require.Equal(t, "held", line)

	// Renewal keeps the permit for more than a lease.
	_, err = l.Acquire(within(t, childLease+time.Second), 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	var next *semaphore.Grant
	w := startCall(func() (err error) { next, err = l.Acquire(within(t, testTimeout), 1); return err })
	awaitListeners(t, rdb, scripts.SemChannel(name), 1)
	require.NoError(t, holder.cmd.Process.Kill())
	require.Error(t, holder.cmd.Wait())
	dead := time.Now()
	_, due, err := nextExpiry(t.Context(), rdb, name)
	require.NoError(t, err)
	require.NoError(t, w.wait(t))
	took := time.Since(dead)
	require.GreaterOrEqual(t, took, due-10*time.Millisecond, "not before the lease of the dead holder ends")
	require.Less(t, took, due+semaphore.DefaultPoll, "at the end of the lease, or at the next poll on a stalled machine")
	t.Logf("%v of the lease were left; taken over after %v", due, took)
	require.NoError(t, next.Release(t.Context()))
}

// nextExpiry reports whether a permit is held and the time until the next lease ends, by the clock of the
// server.
func nextExpiry(ctx context.Context, rdb redis.UniversalClient, name string) (held bool, left time.Duration, err error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return false, 0, err
	}
	first, err := rdb.ZRangeWithScores(ctx, leasesKey(name), 0, 0).Result()
	if err != nil || len(first) == 0 {
		return false, 0, err
	}
	return true, time.UnixMilli(int64(first[0].Score)).Sub(now), nil
}

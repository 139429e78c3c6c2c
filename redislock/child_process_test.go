package redislock_test

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
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The test binary runs itself as other processes. The role says what a child does; its other inputs come from
// the environment.
const (
	roleCount  = "count"   // increments a counter under the lock
	roleNoLock = "no-lock" // increments it without a lock: the negative control
	roleLead   = "lead"    // prints a line once it leads, and leads until it is killed
	roleHold   = "hold"    // acquires the lock, prints a line, and holds it until stdin ends

	roleFrozen       = "frozen"        // acquires the lock, prints a line, and writes to a store when told to
	roleFrozenFenced = "frozen-fenced" // the same, to a store that compares tokens

	childAddrs    = "REDISLOCK_TEST_ADDRS" // comma-separated; several are the nodes of a cluster
	childName     = "REDISLOCK_TEST_NAME"
	childTimes    = "REDISLOCK_TEST_TIMES"
	childKind     = "REDISLOCK_TEST_KIND"  // see newMutex
	childPeers    = "REDISLOCK_TEST_PEERS" // number of processes that start to count together
	counterSuffix = ":counter"
	readySuffix   = ":ready"
	childLease    = safeLease
)

func runChild(role string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	addrs := strings.Split(os.Getenv(childAddrs), ",")
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs, IsClusterMode: len(addrs) > 1})
	defer rdb.Close()
	w, err := wheel.New()
	if err != nil {
		return err
	}
	c, err := redislock.New(rdb, redislock.WithWheel(w))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	name := os.Getenv(childName)
	m := newMutex(c, os.Getenv(childKind), name, redislock.WithLease(childLease))
	add := func(ctx context.Context) error { return addSlowly(ctx, w, rdb, name+counterSuffix) }

	switch role {
	case roleLead:
		return c.Mutex(name, redislock.WithLease(childLease)).Lead(ctx, func(ctx context.Context) error {
			fmt.Println("leads")
			<-ctx.Done()
			return ctx.Err()
		})
	case roleHold:
		if _, err := m.Lock(ctx); err != nil {
			return err
		}
		fmt.Println("held")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case roleFrozen, roleFrozenFenced:
		return writeWhenTold(ctx, rdb, c.Mutex(
			name, redislock.WithLease(time.Second), redislock.WithFencing(), // short: it ends while the process is frozen
		), role == roleFrozenFenced)
	case roleCount, roleNoLock:
		times, err := strconv.Atoi(os.Getenv(childTimes))
		if err != nil {
			return err
		}
		if err := awaitPeers(ctx, w, rdb, name+readySuffix); err != nil {
			return err
		}
		for range times {
			if role == roleNoLock {
				err = add(ctx)
			} else {
				err = m.Do(ctx, add)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown role %q", role)
}

// writeWhenTold acquires the lock, waits for a line on stdin, and then writes to the store.
func writeWhenTold(ctx context.Context, rdb redis.UniversalClient, m *redislock.Mutex, fenced bool) error {
	l, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	fmt.Println("held")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	accepted, err := writeToStore(ctx, rdb, m.Name(), fenced, l.Token(), "of the frozen holder")
	fmt.Printf("valid=%v accepted=%v\n", l.Valid(), accepted)
	return err
}

// awaitPeers waits until childPeers processes have called it.
func awaitPeers(ctx context.Context, w *wheel.Wheel, rdb redis.UniversalClient, key string) error {
	peers, err := strconv.Atoi(os.Getenv(childPeers))
	if err != nil {
		return err
	}
	n, err := rdb.Incr(ctx, key).Result()
	for err == nil && n < int64(peers) {
		if err = w.Sleep(ctx, time.Millisecond); err == nil {
			n, err = rdb.Get(ctx, key).Int64()
		}
	}
	return err
}

// addSlowly reads a counter, pauses, and writes it back incremented. Without a lock it loses updates.
func addSlowly(ctx context.Context, w *wheel.Wheel, rdb redis.UniversalClient, key string) error {
	n, err := rdb.Get(ctx, key).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if err := w.Sleep(ctx, time.Millisecond); err != nil {
		return err
	}
	return rdb.Set(ctx, key, n+1, 0).Err()
}

// childCommand returns the command of a child with the given role. The process is killed when the test ends.
func childCommand(t *testing.T, role string, addrs []string, name string, times int) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(
		os.Environ(), redistest.ChildEnv+"="+role, childAddrs+"="+strings.Join(addrs, ","),
		childName+"="+name, childTimes+"="+strconv.Itoa(times),
	)
	cmd.Stderr = os.Stderr
	return cmd
}

// runningChild is a started child process and its pipes.
type runningChild struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// readLine returns the next line of the child's stdout.
func (r *runningChild) readLine(t *testing.T) string {
	t.Helper()
	line, err := r.stdout.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(line, "\n")
}

func startChild(t *testing.T, role, addr, name string) *runningChild {
	t.Helper()
	cmd := childCommand(t, role, []string{addr}, name, 0)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return &runningChild{cmd, stdin, bufio.NewReader(stdout)}
}

func freeze(t *testing.T, cmd *exec.Cmd) { signalTo(t, cmd, syscall.SIGSTOP) }
func thaw(t *testing.T, cmd *exec.Cmd)   { signalTo(t, cmd, syscall.SIGCONT) }

func signalTo(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(s))
}

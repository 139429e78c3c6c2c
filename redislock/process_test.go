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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The test binary runs itself as the other processes of a fleet. What a child does is its role; the rest comes by environment.
const (
	roleCount  = "count"   // add to a counter under the lock
	roleNoLock = "no-lock" // the same without a lock: the negative control
	roleHold   = "hold"    // take the lock, say so, and keep it until stdin ends

	roleFrozen       = "frozen"        // take the lock, say so, and write to a store when told to, whatever has happened meanwhile
	roleFrozenFenced = "frozen-fenced" // the same to a store that looks at the token

	childAddr   = "REDISLOCK_TEST_ADDR"
	childName   = "REDISLOCK_TEST_NAME"
	childTimes  = "REDISLOCK_TEST_TIMES"
	childKind   = "REDISLOCK_TEST_KIND" // see mutexOf
	counterTail = ":counter"
	childLease  = 3 * time.Second
)

func runChild(role string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr)})
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
	m := mutexOf(c, os.Getenv(childKind), name, redislock.WithLease(childLease))
	add := func(ctx context.Context) error { return addSlowly(ctx, w, rdb, name+counterTail) }

	switch role {
	case roleHold:
		if _, err := m.Lock(ctx); err != nil {
			return err
		}
		fmt.Println("held")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case roleFrozen, roleFrozenFenced:
		return writeLate(ctx, rdb, c.Mutex(name, redislock.WithLease(time.Second), redislock.WithFencing()), role == roleFrozenFenced)
	case roleCount, roleNoLock:
		times, err := strconv.Atoi(os.Getenv(childTimes))
		if err != nil {
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

// writeLate holds the lock until stdin says to write, and writes.
func writeLate(ctx context.Context, rdb *redis.Client, m *redislock.Mutex, fenced bool) error {
	l, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	fmt.Println("held")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	accepted, err := write(ctx, rdb, m.Name(), fenced, l.Token(), "of the frozen holder")
	fmt.Printf("valid=%v accepted=%v\n", l.Valid(), accepted)
	return err
}

// addSlowly adds one in a way that loses updates unless a lock guards it: read, dawdle, write.
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

// child prepares a process of that role. It is killed with the test.
func child(t *testing.T, role, addr, name string, times int) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+role, childAddr+"="+addr, childName+"="+name, childTimes+"="+strconv.Itoa(times))
	cmd.Stderr = os.Stderr
	return cmd
}

// running is a child under way, its ends of the pipes in hand.
type running struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startChild(t *testing.T, role, addr, name string) *running {
	t.Helper()
	cmd := child(t, role, addr, name, 0)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return &running{cmd, stdin, bufio.NewReader(stdout)}
}

// line is the next line that the child says.
func (r *running) line(t *testing.T) string {
	t.Helper()
	line, err := r.stdout.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(line, "\n")
}

func freeze(t *testing.T, cmd *exec.Cmd) { signalTo(t, cmd, syscall.SIGSTOP) }
func thaw(t *testing.T, cmd *exec.Cmd)   { signalTo(t, cmd, syscall.SIGCONT) }

func signalTo(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(s))
}

func TestMutex_ExcludesProcesses(t *testing.T) {
	t.Parallel()
	const processes, times = 4, 40
	server := redistest.Shared(t)
	rdb := server.Client(t)

	count := func(t *testing.T, role string) int {
		name := redistest.Name(t)
		var running sync.WaitGroup
		errs := make([]error, processes)
		for i := range processes {
			cmd := child(t, role, server.Addr(), name, times)
			running.Go(func() { errs[i] = cmd.Run() })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		requireFree(t, rdb, name)
		n, err := rdb.Get(t.Context(), name+counterTail).Int()
		require.NoError(t, err)
		return n
	}

	t.Run("so that no update is lost", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, processes*times, count(t, roleCount))
	})

	t.Run("while without the lock updates are lost (control)", func(t *testing.T) {
		t.Parallel()
		require.Less(t, count(t, roleNoLock), processes*times)
	})
}

func TestMutex_IsTakenOverFromAKilledProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t)
	name := redistest.Name(t)

	holder := child(t, roleHold, server.Addr(), name, 0)
	stdin, err := holder.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)

	c := newClient(t, rdb)
	m := c.Mutex(name)
	// The watchdog keeps it for more than a lease.
	waited := within(t, childLease+childLease/2)
	_, err = m.Lock(waited)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redislock.ErrLocked)

	type outcome struct {
		lock *redislock.Lock
		err  error
		at   time.Time
	}
	got := make(chan outcome, 1)
	ctx := within(t, patience)
	go func() {
		l, err := m.Lock(ctx)
		got <- outcome{l, err, time.Now()}
	}()
	awaitWaiters(t, rdb, name)

	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	dead := time.Now()
	left, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Positive(t, left)

	o := <-got
	require.NoError(t, o.err)
	took := o.at.Sub(dead)
	require.GreaterOrEqual(t, took, left-10*time.Millisecond, "not before the dead holder's lease ended")
	require.Less(t, took, left+5*time.Second, "at the lease's end, or on a machine that stalls at the safety poll after it")
	t.Logf("%v of the lease were left; taken over after %v", left, took)
	require.NoError(t, o.lock.Unlock(t.Context()))
}

package ratelimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The test binary runs itself as the processes of a fleet that use one limit as fast as they can and write down every grant.
const (
	roleKeyed   = "keyed"
	roleLog     = "log"
	roleNoLimit = "no-limit" // each process has a limit of its own: the negative control
	childAddr   = "RATELIMIT_TEST_ADDR"
	childName   = "RATELIMIT_TEST_NAME"
	childStart  = "RATELIMIT_TEST_START" // Unix nanoseconds
	childEnd    = "RATELIMIT_TEST_END"
)

var fleetLimit = ratelimit.Limit{Rate: 400, Per: time.Second, Burst: 400}

// grant is an admission that happened at some instant from call to ret.
type grant struct{ call, ret int64 }

// flatOut asks until the end and returns the grants. A denied request comes back when it was told to.
func flatOut(ctx context.Context, w *wheel.Wheel, end time.Time, allow func(context.Context) (ratelimit.Result, error)) (grants []grant, failed int) {
	for {
		call := time.Now()
		if !call.Before(end) {
			return grants, failed
		}
		r, err := allow(ctx)
		switch {
		case err != nil:
			failed++
			_ = w.Sleep(ctx, 5*time.Millisecond)
		case r.Allowed:
			grants = append(grants, grant{call.UnixNano(), time.Now().UnixNano()})
		default:
			_ = w.Sleep(ctx, min(r.RetryAfter, time.Until(end)))
		}
	}
}

func runChild(role string) (err error) {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr)})
	defer rdb.Close()
	w, err := wheel.New()
	if err != nil {
		return err
	}
	c, err := ratelimit.New(rdb, ratelimit.WithWheel(w))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	name := os.Getenv(childName)
	if role == roleNoLimit {
		name += strconv.Itoa(os.Getpid())
	}
	keyed := c.Keyed("fleet", fleetLimit)
	allow := func(ctx context.Context) (ratelimit.Result, error) { return keyed.Allow(ctx, name) }
	if role == roleLog {
		allow = c.Limiter(name).Allow
	}
	start, err := strconv.ParseInt(os.Getenv(childStart), 10, 64)
	if err != nil {
		return err
	}
	end, err := strconv.ParseInt(os.Getenv(childEnd), 10, 64)
	if err != nil {
		return err
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		return err
	}
	if err := w.Sleep(ctx, time.Until(time.Unix(0, start))); err != nil {
		return err
	}
	grants, failed := flatOut(ctx, w, time.Unix(0, end), allow)
	if failed > 0 {
		return fmt.Errorf("%d calls failed", failed)
	}
	out := bufio.NewWriter(os.Stdout)
	for _, g := range grants {
		_, _ = fmt.Fprintln(out, g.call, g.ret) // Flush tells
	}
	return out.Flush()
}

// fleet runs processes and returns what they were granted and how long they ran.
func fleet(t *testing.T, role, addr, name string, processes int, lasts time.Duration) []grant {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	start := time.Now().Add(2 * time.Second) // by then all are connected
	var grants []grant
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := make([]error, processes)
	for i := range processes {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), childEnv+"="+role, childAddr+"="+addr, childName+"="+name,
			fmt.Sprintf("%s=%d", childStart, start.UnixNano()), fmt.Sprintf("%s=%d", childEnd, start.Add(lasts).UnixNano()))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		running.Go(func() {
			var got []grant
			var read error
			for {
				var g grant
				if _, read = fmt.Fscanln(out, &g.call, &g.ret); read != nil {
					break
				}
				got = append(got, g)
			}
			if errors.Is(read, io.EOF) {
				read = nil
			}
			errs[i] = errors.Join(read, cmd.Wait())
			mu.Lock()
			defer mu.Unlock()
			grants = append(grants, got...)
		})
	}
	running.Wait()
	require.NoError(t, errors.Join(errs...))
	return grants
}

// excess replays a history: by how many grants the worst window is above what it may hold, at most 0 if the limit was kept. A
// window begins with the call of a grant and ends with the return of one, and holds those that happened surely in it.
func excess(grants []grant, may func(time.Duration) float64) float64 {
	grants = slices.Clone(grants)
	slices.SortFunc(grants, func(a, b grant) int { return int(a.ret - b.ret) })
	worst := -may(0)
	for _, first := range grants {
		held := 0
		for _, g := range grants {
			if g.call >= first.call {
				held++
				worst = max(worst, float64(held)-may(time.Duration(g.ret-first.call)))
			}
		}
	}
	return worst
}

func bucket(l ratelimit.Limit, bursts int64) func(time.Duration) float64 {
	return func(d time.Duration) float64 {
		return float64(bursts*l.Burst) + float64(l.Rate)*float64(d)/float64(l.Per)
	}
}

// window allows the rate within any interval: twice within more than one, and so on.
func window(l ratelimit.Limit) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return float64(l.Rate) * float64(d/l.Per+1) }
}

func fleetDuration(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmpOr(os.Getenv("RATELIMIT_DURATION"), "4s"))
	require.NoError(t, err)
	return d
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func TestReplay_SixteenProcessesKeepTheLimit(t *testing.T) {
	const processes = 16
	server := redistest.Shared(t)
	lasts := fleetDuration(t)

	t.Run("of GCRA, and use it up", func(t *testing.T) {
		grants := fleet(t, roleKeyed, server.Addr(), redistest.Name(t), processes, lasts)
		require.LessOrEqual(t, excess(grants, bucket(fleetLimit, 1)), 0.0)
		utilisation := float64(len(grants)) / bucket(fleetLimit, 1)(lasts)
		t.Logf("%d grants by %d processes in %v, utilisation %.4f", len(grants), processes, lasts, utilisation)
		require.GreaterOrEqual(t, utilisation, 0.99)
	})

	t.Run("of a sliding log, and use it up", func(t *testing.T) {
		name := redistest.Name(t)
		c := newClient(t, server.Client(t))
		require.NoError(t, c.Limiter(name).SetRate(t.Context(), fleetLimit, ratelimit.Overall))
		grants := fleet(t, roleLog, server.Addr(), name, processes, lasts)
		require.LessOrEqual(t, excess(grants, window(fleetLimit)), 0.0)
		utilisation := float64(len(grants)) / (float64(fleetLimit.Rate) * lasts.Seconds())
		t.Logf("%d grants by %d processes in %v, utilisation %.4f", len(grants), processes, lasts, utilisation)
		require.GreaterOrEqual(t, utilisation, 0.99)
	})

	t.Run("while without a common limit the replay finds an excess (control)", func(t *testing.T) {
		grants := fleet(t, roleNoLimit, server.Addr(), redistest.Name(t), 2, time.Second)
		require.Greater(t, excess(grants, bucket(fleetLimit, 1)), 100.0)
		require.Greater(t, excess(grants, window(fleetLimit)), 100.0)
	})
}

// crowd starts a fleet within this process, for faults that need the dialer or the server at hand.
func crowd(t *testing.T, clients int, lasts time.Duration, rdb func() *redis.Client, name string) (wait func() ([]grant, int)) {
	t.Helper()
	var grants []grant
	var failed int
	var mu sync.Mutex
	var running sync.WaitGroup
	for range clients {
		c := newClient(t, rdb(), ratelimit.WithBreaker(3, 20*time.Millisecond))
		w := newWheel(t)
		keyed := c.Keyed("crowd", fleetLimit)
		end := time.Now().Add(lasts)
		running.Go(func() {
			got, bad := flatOut(t.Context(), w, end, func(ctx context.Context) (ratelimit.Result, error) { return keyed.Allow(ctx, name) })
			mu.Lock()
			defer mu.Unlock()
			grants, failed = append(grants, got...), failed+bad
		})
	}
	return func() ([]grant, int) {
		running.Wait()
		return grants, failed
	}
}

func TestReplay_LostRepliesNeverAdmitMore(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	name := redistest.Name(t)
	lost := 0
	var dialers []*redistest.FaultDialer
	var losses []<-chan struct{}
	grants, failed := crowd(t, 4, 3*time.Second, func() *redis.Client {
		d := &redistest.FaultDialer{}
		for i := range 40 {
			losses = append(losses, d.LoseReply("evalsha", 3+10*i, redistest.Cut))
		}
		dialers = append(dialers, d)
		return server.Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
	}, name)()
	for _, l := range losses {
		select {
		case <-l:
			lost++
		default:
		}
	}
	require.Greater(t, lost, 20, "something has to go wrong")
	require.Positive(t, failed)
	require.LessOrEqual(t, excess(grants, bucket(fleetLimit, 1)), 0.0)
	t.Logf("%d replies lost, %d calls failed, %d granted of %.0f", lost, failed, len(grants), bucket(fleetLimit, 1)(3*time.Second))
}

func TestReplay_ARestartGrantsAtMostOneBurstMore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	name := redistest.Name(t)
	wait := crowd(t, 4, 4*time.Second, func() *redis.Client { return server.Client(t) }, name)
	require.NoError(t, newWheel(t).Sleep(t.Context(), 1500*time.Millisecond))
	server.Restart(t)
	grants, _ := wait()
	require.LessOrEqual(t, excess(grants, bucket(fleetLimit, 2)), 0.0)
	require.Greater(t, excess(grants, bucket(fleetLimit, 1)), 0.0, "the state was lost, and the replay sees it")
	after := 0
	for _, g := range grants {
		if g.call > grants[0].call+int64(3*time.Second) {
			after++
		}
	}
	require.Positive(t, after, "it went on")
}

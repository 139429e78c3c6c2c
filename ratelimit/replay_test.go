package ratelimit_test

import (
	"bufio"
	"cmp"
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

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The test binary runs itself as the processes of a fleet that use one limit as fast as they can and write
// down every grant.
const (
	roleFleet   = "fleet"
	roleNoLimit = "no-limit" // each process has limits of its own: the negative control
	childAddr   = "RATELIMIT_TEST_ADDR"
	childName   = "RATELIMIT_TEST_NAME"
	childStart  = "RATELIMIT_TEST_START" // Unix nanoseconds
	childEnd    = "RATELIMIT_TEST_END"
	childLose   = "RATELIMIT_TEST_LOSE" // set: one reply in ten is lost
)

var fleetLimit = ratelimit.PerSecond(100)

// flatOut asks until the end and returns the grants. A denied request comes back when it was told to.
func flatOut(ctx context.Context, w *wheel.Wheel, end time.Time, allow func(context.Context) (ratelimit.Result, error)) (grants []oracle.Grant, failed int) {
	for {
		call := time.Now()
		if !call.Before(end) {
			return grants, failed
		}
		r, err := allow(ctx)
		switch {
		case err != nil:
			failed++
			_ = w.Sleep(ctx, 5*time.Millisecond) // rather than ask a server that is away without a pause
		case r.Allowed:
			grants = append(grants, oracle.Between(call, time.Now(), 1))
		default:
			_ = w.Sleep(ctx, min(r.RetryAfter, time.Until(end), 100*time.Millisecond)) // earlier if the state was lost
		}
	}
}

func runChild(role string) (err error) {
	ctx := context.Background()
	d := &redistest.FaultDialer{}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childAddr), Dialer: d.Dial, MinIdleConns: 2, ReadTimeout: 10 * time.Second})
	defer rdb.Close()
	w, err := wheel.New()
	if err != nil {
		return err
	}
	opts := []ratelimit.Option{ratelimit.WithWheel(w), ratelimit.WithBreaker(3, 20*time.Millisecond)}
	if os.Getenv(childLose) == "" {
		opts = append(opts, ratelimit.WithTimeout(time.Minute)) // a busy machine fails no call
	}
	c, err := ratelimit.New(rdb, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	name := os.Getenv(childName)
	if role == roleNoLimit {
		name += strconv.Itoa(os.Getpid())
		if err := c.StoredLimiter(name).SetRate(ctx, fleetLimit); err != nil {
			return err
		}
	}
	limiter := c.Limiter("fleet", fleetLimit)
	ways := map[string]func(context.Context) (ratelimit.Result, error){
		"GCRA": func(ctx context.Context) (ratelimit.Result, error) { return limiter.Allow(ctx, name) },
		"log":  c.StoredLimiter(name).Allow,
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
	if err := w.Sleep(ctx, time.Until(time.Unix(0, start))); err != nil { // all processes begin at one instant
		return err
	}
	var losses []<-chan struct{}
	if os.Getenv(childLose) != "" {
		for i := range 100 {
			losses = append(losses, d.LoseReply("evalsha", 3+10*i, redistest.Cut))
		}
	}
	out, mu := bufio.NewWriter(os.Stdout), sync.Mutex{}
	var running sync.WaitGroup
	for way, allow := range ways {
		running.Go(func() {
			grants, failed := flatOut(ctx, w, time.Unix(0, end), allow)
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintln(out, "failed", failed, 0) // Flush tells
			for _, g := range grants {
				_, _ = fmt.Fprintln(out, way, g.Call, g.Return)
			}
		})
	}
	running.Wait()
	lost := 0
	for _, l := range losses {
		select {
		case <-l:
			lost++
		default:
		}
	}
	_, _ = fmt.Fprintln(out, "lost", lost, 0)
	return out.Flush()
}

// fleet is sixteen processes, each of which uses a limit of either kind, and what happens meanwhile.
type fleet struct {
	server    *redistest.Server
	processes int
	log       ratelimit.Limit // of the log; that of GCRA is fleetLimit
	lasts     time.Duration
	lose      bool                   // replies
	during    func(configure func()) // as soon as the limits are used up
}

// history is what a fleet was granted by the two algorithms, how many calls failed and how many replies were
// lost.
type history struct {
	gcra, log    []oracle.Grant
	failed, lost int64
	end          time.Time
}

// run starts the processes and collects what they were granted.
func (f fleet) run(t *testing.T, role string) (h history) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	name := redistest.Name(t)
	c := newClient(t, f.server.Client(t))
	l, limiter := c.StoredLimiter(name), c.Limiter("fleet", fleetLimit)
	configure := func() {
		require.NoError(t, l.SetRate(t.Context(), f.log, ratelimit.WithState()))
	}
	configure()
	start := time.Now().Add(2 * time.Second) // by then all are connected, unless the machine is busy
	h.end = start.Add(f.lasts)
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := make([]error, f.processes)
	for i := range f.processes {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), childEnv+"="+role, childAddr+"="+f.server.Addr(), childName+"="+name,
			fmt.Sprintf("%s=%d", childStart, start.UnixNano()), fmt.Sprintf("%s=%d", childEnd, start.Add(f.lasts).UnixNano()))
		if f.lose {
			cmd.Env = append(cmd.Env, childLose+"=1")
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		running.Go(func() {
			err := h.read(&mu, out)
			errs[i] = errors.Join(err, cmd.Wait())
		})
	}
	if f.during != nil {
		for w, usedUp := newWheel(t), false; !usedUp && time.Now().Before(h.end); {
			require.NoError(t, w.Sleep(t.Context(), 20*time.Millisecond))
			inLog, err := l.Peek(t.Context())
			require.NoError(t, err)
			inBucket, err := limiter.Peek(t.Context(), name)
			require.NoError(t, err)
			usedUp = inLog.Remaining == 0 && inBucket.Remaining < 10
		}
		f.during(configure)
	}
	running.Wait()
	require.NoError(t, errors.Join(errs...))
	return h
}

// read adds what one process has written down.
func (h *history) read(mu *sync.Mutex, from io.Reader) error {
	in := bufio.NewReader(from)
	for {
		var what string
		g := oracle.Grant{N: 1}
		if _, err := fmt.Fscanln(in, &what, &g.Call, &g.Return); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		mu.Lock()
		switch what {
		case "GCRA":
			h.gcra = append(h.gcra, g)
		case "log":
			h.log = append(h.log, g)
		case "failed":
			h.failed += g.Call
		case "lost":
			h.lost += g.Call
		}
		mu.Unlock()
	}
}

// fleetDuration is how long a fleet without faults runs.
func fleetDuration() time.Duration { return testsize.WhenAlone(4*time.Second, time.Minute) }

// Guarantees: Q1.
func TestReplay_SixteenProcessesKeepTheLimit(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	f := fleet{server: redistest.Shared(t), processes: 16, log: fleetLimit, lasts: fleetDuration()}
	h := f.run(t, roleFleet)
	require.Zero(t, h.failed)
	for what, c := range map[string]struct {
		grants []oracle.Grant
		may    oracle.Bound
		all    oracle.Bound
	}{
		"GCRA": {h.gcra, oracle.Limit(fleetLimit).BucketBound(), oracle.Limit(fleetLimit).BucketBound()},
		"log":  {h.log, oracle.Limit(fleetLimit).LogBound(), func(d time.Duration) float64 { return oracle.Limit(fleetLimit).LogBound()(d - 200*time.Millisecond) }}, // it grants in steps
	} {
		require.LessOrEqual(t, oracle.Excess(c.grants, c.may), 0.0, what)
		first := slices.MinFunc(c.grants, func(a, b oracle.Grant) int { return cmp.Compare(a.Call, b.Call) })
		utilisation := float64(len(c.grants)) / c.all(h.end.Sub(time.Unix(0, first.Return)))
		t.Logf("%s: %d grants by %d processes in %v, utilisation %.4f", what, len(c.grants), f.processes, f.lasts, utilisation)
		want := 0.2 // a short run shares the machine with other tests, and its last moments weigh much
		if testsize.Alone() {
			want = 0.99
		}
		require.GreaterOrEqual(t, utilisation, want, "%s is used up", what)
	}
}

// The negative control: without a common limit the replay finds an excess.
func TestReplay_FindsAnExcess(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	h := fleet{server: redistest.Shared(t), processes: 8, log: fleetLimit, lasts: 3 * time.Second}.run(t, roleNoLimit)
	for what, grants := range map[string][]oracle.Grant{"GCRA": h.gcra, "log": h.log} {
		// As slow as the machine is, half of what was granted is an excess.
		from := slices.MinFunc(grants, func(a, b oracle.Grant) int { return cmp.Compare(a.Call, b.Call) }).Call
		to := slices.MaxFunc(grants, func(a, b oracle.Grant) int { return cmp.Compare(a.Return, b.Return) }).Return
		half := ratelimit.Limit{Rate: max(1, int64(len(grants)/2)), Per: time.Duration(to - from + 1), Burst: 1}
		require.Greater(t, oracle.Excess(grants, oracle.Limit(half).BucketBound()), 0.0, what)
		require.Greater(t, oracle.Excess(grants, oracle.Limit(half).LogBound()), 0.0, what)
	}
}

// Guarantees: Q4.
func TestReplay_LostRepliesNeverAdmitMore(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	f := fleet{server: redistest.Start(t), processes: 16, log: fleetLimit, lasts: 6 * time.Second, lose: true}
	h := f.run(t, roleFleet)
	require.LessOrEqual(t, oracle.Excess(h.gcra, oracle.Limit(fleetLimit).BucketBound()), 0.0)
	require.LessOrEqual(t, oracle.Excess(h.log, oracle.Limit(fleetLimit).LogBound()), 0.0)
	require.Positive(t, h.lost, "something has to go wrong")
	require.Positive(t, h.failed)
	require.Greater(t, len(h.gcra), int(fleetLimit.Burst), "and to go on")
	require.Greater(t, len(h.log), int(fleetLimit.Burst))
	t.Logf("%d replies lost, %d calls failed; granted %d of %.0f by GCRA, %d of %.0f by the log", h.lost, h.failed,
		len(h.gcra), oracle.Limit(fleetLimit).BucketBound()(f.lasts), len(h.log), float64(fleetLimit.Rate)*f.lasts.Seconds())
}

// slowLimit is one that lasts longer than a process remembers a denial.
var slowLimit = perSeconds(200, 4)

// Guarantees: Q3.
func TestReplay_ALossOfAllDataGrantsAtMostOneBurstMore(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for how, lose := range map[string]func(t *testing.T, s *redistest.Server){
		"restart":  func(t *testing.T, s *redistest.Server) { s.Restart(t) },
		"FLUSHALL": func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Client(t).FlushAll(t.Context()).Err()) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			var at time.Time
			h := fleet{server: server, processes: 16, log: slowLimit, lasts: 4 * time.Second, during: func(configure func()) {
				at = time.Now()
				lose(t, server)
				configure()
			}}.run(t, roleFleet)
			for what, c := range map[string]struct {
				grants []oracle.Grant
				may    oracle.Bound
				burst  int64
			}{
				"GCRA": {h.gcra, oracle.Limit(fleetLimit).BucketBound(), fleetLimit.Burst},
				"log":  {h.log, oracle.Limit(slowLimit).LogBound(), slowLimit.Burst},
			} {
				found := oracle.Excess(c.grants, c.may)
				require.LessOrEqual(t, found, float64(c.burst), what)
				require.True(t, slices.ContainsFunc(c.grants, func(g oracle.Grant) bool { return g.Call > at.UnixNano() }), "%s went on", what)
				t.Logf("%s: %d granted, at most %.0f too many in a window; %d calls failed", what, len(c.grants), found, h.failed)
			}
		})
	}
}

package semaphore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// sweepChildren times perChild is the number of clients.
const sweepChildren = 4

// hold is a time, in microseconds, during which a client relied on n permits.
type hold struct {
	n, from, to int64
	child       int
	ended       bool
}

// ledger collects the reports of the children.
type ledger struct {
	mu    sync.Mutex
	holds map[uint64]*hold
}

// listen reads a child until it ends.
func (l *ledger) listen(child int, p *process) {
	for {
		line, err := p.line()
		if err != nil {
			return
		}
		l.note(child, line)
	}
}

func (l *ledger) note(child int, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var id uint64
	h := hold{child: child}
	if _, err := fmt.Sscanf(line, "%d %d %d %d", &id, &h.n, &h.from, &h.to); err == nil {
		l.holds[id] = &h
	} else if _, err := fmt.Sscanf(line, "%d end", &id); err == nil && l.holds[id] != nil {
		l.holds[id].ended = true
	}
}

// holder returns a child that holds permits, or any child.
func (l *ledger) holder() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().UnixMicro()
	for _, h := range l.holds {
		if !h.ended && now-h.to < 50_000 {
			return h.child
		}
	}
	return rand.IntN(sweepChildren)
}

// most returns the largest number of permits that clients relied on at one instant.
func (l *ledger) most() (most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type edge struct{ at, change int64 }
	var edges []edge
	for _, h := range l.holds {
		edges = append(edges, edge{h.from, h.n}, edge{h.to + 1, -h.n})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change)) })
	held := int64(0)
	for _, e := range edges {
		held += e.change
		most = max(most, held)
	}
	return most
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds)
}

// readPermits reads the keys of a Semaphore: free permits, held permits, and the time until the last
// lease ends.
var readPermits = redis.NewScript(`
local time, last = redis.call('TIME'), redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
return {tonumber(redis.call('GET', KEYS[1]) or -1), redis.call('ZCARD', KEYS[2]), last and last - time[1] * 1000 - math.floor(time[2] / 1000) or 0}`)

// sweep is a set of child processes, their server and the faults so far.
type sweep struct {
	t        *testing.T
	kind     string
	name     string
	server   *redistest.Server
	rdb      *redis.Client
	ledger   *ledger
	children [sweepChildren]*process
	reading  sync.WaitGroup
	seed     uint64
	longest  time.Duration // a permit may stay held or assigned without renewal
	keys     []string
	faults   map[string]int
}

func newSweep(t *testing.T, kind string) *sweep {
	t.Helper()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := &sweep{
		t: t, kind: kind, name: "permits", server: server, rdb: server.Client(t),
		ledger: &ledger{holds: make(map[uint64]*hold)}, longest: sweepLease, faults: make(map[string]int),
	}
	s.keys = []string{s.name, leasesKey(s.name)}
	c := newClient(t, server.Client(t))
	switch kind {
	case kindCounting:
		mustSetPermits(t, c.CountingSemaphore(s.name), sweepPermits)
	case kindFair:
		s.keys = []string{scripts.SuffixName(s.name, "fair:permits"), scripts.SuffixName(s.name, "fair:leases")}
		s.longest = 3*sweepPoll + time.Second // an assignment waits for its claim
		mustSetPermits(t, c.FairSemaphore(s.name, 0), sweepPermits)
	default:
		mustSetPermits(t, c.Semaphore(s.name, 0), sweepPermits)
	}
	for i := range s.children {
		s.spawn(i)
	}
	return s
}

func (s *sweep) spawn(i int) {
	s.seed++
	p := spawn(s.t, roleSweep, s.server.Addr(), s.name, childKind+"="+s.kind, fmt.Sprintf("%s=%d", childSeed, s.seed))
	s.children[i] = p
	s.reading.Go(func() { s.ledger.listen(i, p) })
}

// fault causes one fault of a child or the server.
func (s *sweep) fault(w *wheel.Wheel, what string) {
	ctx := s.t.Context()
	s.faults[what]++
	i := s.ledger.holder()
	switch what {
	case "connections":
		s.rdb.Do(ctx, "client", "kill", "type", "normal")
	case "subscriptions":
		s.rdb.Do(ctx, "client", "kill", "type", "pubsub")
	case "stop":
		p := s.children[i].cmd.Process
		require.NoError(s.t, p.Signal(syscall.SIGSTOP))
		require.NoError(s.t, w.Sleep(ctx, time.Duration(rand.Int64N(int64(2*sweepLease)))))
		require.NoError(s.t, p.Signal(syscall.SIGCONT))
	case "kill":
		require.NoError(s.t, s.children[i].cmd.Process.Kill())
		_ = s.children[i].cmd.Wait() // the error is that of the kill
		s.spawn(i)
	case "hang":
		s.server.Pause()
		require.NoError(s.t, w.Sleep(ctx, time.Duration(rand.Int64N(int64(sweepLease)))))
		s.server.Resume()
	case "restart":
		s.server.Restart(s.t)
	}
}

// audit reads the keys until ctx ends. It fails if the number of permits changes, or if one is held for
// longer than a lease.
func (s *sweep) audit(ctx context.Context, w *wheel.Wheel) (looks int, err error) {
	for w.Sleep(ctx, 10*time.Millisecond) == nil {
		v, failed := readPermits.Run(ctx, s.rdb, s.keys).Int64Slice()
		if failed != nil {
			continue // a fault of the server
		}
		looks++
		if v[0]+v[1] != sweepPermits {
			return looks, fmt.Errorf("%d free and %d held", v[0], v[1])
		}
		if left := time.Duration(v[2]) * time.Millisecond; left > s.longest+5*time.Millisecond {
			return looks, fmt.Errorf("a permit is held for %v", left)
		}
	}
	return looks, nil
}

// finish kills some children in the midst of their work and lets the others end.
func (s *sweep) finish(kill int) {
	for i, p := range s.children {
		if i < kill {
			require.NoError(s.t, p.cmd.Process.Kill())
		} else {
			require.NoError(s.t, p.stdin.Close())
		}
	}
	s.reading.Wait()
	for i, p := range s.children {
		if err := p.cmd.Wait(); i >= kill {
			require.NoError(s.t, err, "child %d", i)
		}
	}
}

// In TestSweep_BelievedHolds, 32 clients in four processes acquire five permits while replies are lost,
// connections are killed, the server hangs and restarts with its data, and holders are stopped for up to
// two leases and killed.
// Guarantees: S1, S4, S10.
func TestSweep_BelievedHolds(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	d := testsize.WhenAlone(2500*time.Millisecond, time.Minute)
	for _, kind := range []string{kindSemaphore, kindFair, kindCounting} {
		t.Run(kind+": never more than exist, all free within a lease, none leaked", func(t *testing.T) {
			t.Parallel()
			s, w := newSweep(t, kind), newWheel(t)
			faultKinds := []string{"connections", "connections", "subscriptions", "stop", "hang"}
			kill := 0
			if kind != kindCounting { // counting permits are lost with their holder
				faultKinds = append(faultKinds, "kill", "kill")
				kill = sweepChildren / 2
			}
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			var looks int
			audited := startCall(func() (err error) {
				if kind != kindCounting {
					looks, err = s.audit(ctx, w)
				}
				return err
			})
			restart := time.Now().Add(min(d/2, 10*time.Second))
			for i := 0; ctx.Err() == nil; i++ {
				if time.Now().After(restart) {
					restart = restart.Add(20 * time.Second)
					s.fault(w, "restart")
				}
				s.fault(w, faultKinds[(i+rand.IntN(2))%len(faultKinds)])
				_ = w.Sleep(ctx, time.Duration(rand.IntN(300))*time.Millisecond) // ctx may end meanwhile
			}
			require.NoError(t, audited.wait(t))
			s.finish(kill)
			stalled, ended := redistest.Stalls(t), time.Now()
			s.requireAllFree(t)
			t.Logf("%d holds, most at a time %d; all free %v after the end; faults %v; %d audits",
				s.ledger.count(), s.ledger.most(), time.Since(ended).Round(time.Millisecond), s.faults, looks)
			require.LessOrEqual(t, s.ledger.most(), int64(sweepPermits))
			least := max(1, int((d-5*time.Second)/(500*time.Millisecond)))
			require.GreaterOrEqual(t, s.ledger.count(), least, "the clients went on")
			require.Less(t, time.Since(ended)-stalled(), s.longest+5*time.Second, "a lease, and room for a busy machine")
		})
	}

	t.Run("control: finds clients that do not check whether they still hold", func(t *testing.T) {
		t.Parallel()
		s := newSweep(t, kindUnchecked)
		poll(t, func() bool { return s.ledger.most() > sweepPermits })
		s.finish(0)
	})

	t.Run("control: finds a permit too many and a lease too long", func(t *testing.T) {
		t.Parallel()
		s, w := newSweep(t, kindSemaphore), newWheel(t)
		s.finish(0)
		for looks := 0; looks == 0; {
			var err error
			looks, err = s.audit(within(t, 200*time.Millisecond), w)
			require.NoError(t, err)
		}
		require.NoError(t, s.rdb.Incr(t.Context(), s.name).Err())
		_, err := s.audit(within(t, testTimeout), w)
		require.ErrorContains(t, err, "6 free and 0 held")
		require.NoError(t, s.rdb.DecrBy(t.Context(), s.name, 2).Err())
		due := float64(time.Now().Add(time.Hour).UnixMilli())
		require.NoError(t, s.rdb.ZAdd(t.Context(), s.keys[1], redis.Z{Score: due, Member: strings.Repeat("x", 16)}).Err())
		_, err = s.audit(within(t, testTimeout), w)
		require.ErrorContains(t, err, "is held for")
	})
}

// requireAllFree waits until all permits are free and no lease is left.
func (s *sweep) requireAllFree(t *testing.T) {
	t.Helper()
	c := newClient(t, s.server.Client(t))
	if s.kind == kindCounting {
		require.EqualValues(t, sweepPermits, available(t, c.CountingSemaphore(s.name)))
		return
	}
	l := c.Semaphore(s.name, 0)
	if s.kind == kindFair {
		l = c.FairSemaphore(s.name, 0)
	}
	poll(t, func() bool { return available(t, l) == sweepPermits })
	g, err := l.TryAcquire(t.Context(), sweepPermits)
	if errors.Is(err, semaphore.ErrNoPermits) && s.kind == kindFair {
		g, err = l.Acquire(within(t, testTimeout), sweepPermits) // once the requests of dead processes have expired
	}
	require.NoError(t, err)
	require.NoError(t, g.Release(t.Context()))
	require.EqualValues(t, sweepPermits, available(t, l))
	require.Zero(t, s.rdb.ZCard(t.Context(), s.keys[1]).Val())
}

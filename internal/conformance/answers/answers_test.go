package answers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) {
	redistest.Parallel(8) // the tests wait for answers, but each outage must be over well within a lease
	redistest.Main(m, redistest.DefaultWheel)
}

// process is one client of each package, on a connection that a test disturbs.
type process struct {
	locks      *redislock.Client
	semaphores *semaphore.Client
	delays     *delay.Client
	limits     map[string]*ratelimit.Client // by policy
	log        records
}

// records is what a logger writes.
type records struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// errors returns the errors of the records that have a message.
func (r *records) errors(message string) (errs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.text.String()) {
		if _, attrs, found := strings.Cut(line, message); found {
			_, err, _ := strings.Cut(attrs, "error=")
			errs = append(errs, err)
		}
	}
	return errs
}

func newProcess(t *testing.T, w *wheel.Wheel, rdb *redis.Client) *process {
	t.Helper()
	const poll = time.Second
	p := &process{limits: map[string]*ratelimit.Client{}}
	logger := slog.New(slog.NewTextHandler(&p.log, nil))
	var err error
	p.locks, err = redislock.New(rdb, redislock.WithWheel(w), redislock.WithPoll(poll), redislock.WithLogger(logger))
	require.NoError(t, err)
	redistest.CloseWith(t, p.locks.Close)
	p.semaphores, err = semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithPoll(poll), semaphore.WithLogger(logger))
	require.NoError(t, err)
	redistest.CloseWith(t, p.semaphores.Close)
	p.delays, err = delay.New(rdb, delay.WithWheel(w), delay.WithPoll(poll), delay.WithLogger(logger))
	require.NoError(t, err)
	redistest.CloseWith(t, p.delays.Close)
	for name, policy := range map[string]ratelimit.Policy{
		"closed": ratelimit.FailClosed(), "open": ratelimit.FailOpen(), "share": ratelimit.LocalShare(1),
	} {
		p.limits[name], err = ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithPolicy(policy), ratelimit.WithTimeout(5*time.Second))
		require.NoError(t, err)
		redistest.CloseWith(t, p.limits[name].Close)
	}
	return p
}

// state has what a process holds, waits for and does when Redis begins to give another answer.
type state struct {
	t       *testing.T
	name    string
	process *process
	other   *process // undisturbed

	lock    *redislock.Lock
	grant   *semaphore.Grant
	permits *semaphore.CountingSemaphore // with one permit, which the process has taken
	tasks   *delay.Queue

	freeing []func(context.Context) error // releases what other holds and the process waits for

	waits    map[string]chan error // of the process, by call
	serve    chan error
	served   chan struct{} // a task has run
	handler  chan error    // the end of the context of the handler that runs, or nil when it ends
	stopTask chan struct{} // ends that handler
}

// answer is an error of a server.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// mutexes are the kinds of locks for which the process waits.
var mutexes = map[string]func(p *process, name string) *redislock.Mutex{
	"Mutex":     func(p *process, name string) *redislock.Mutex { return p.locks.Mutex(name + ":Mutex") },
	"FairMutex": func(p *process, name string) *redislock.Mutex { return p.locks.FairMutex(name + ":FairMutex") },
	"Writer":    func(p *process, name string) *redislock.Mutex { return p.locks.RWMutex(name + ":Writer").Writer() },
	"fenced": func(p *process, name string) *redislock.Mutex {
		return p.locks.Mutex(name+":fenced", redislock.WithFencing())
	},
}

// semaphores are the kinds of semaphores with leases.
var semaphores = map[string]func(p *process, name string) *semaphore.Semaphore{
	"Semaphore": func(p *process, name string) *semaphore.Semaphore {
		return p.semaphores.Semaphore(name+":Semaphore", 1)
	},
	"FairSemaphore": func(p *process, name string) *semaphore.Semaphore {
		return p.semaphores.FairSemaphore(name+":FairSemaphore", 1)
	},
}

// asked are parts of the calls of what has begun.
func (s *state) asked() (parts []string) {
	for kind := range mutexes {
		parts = append(parts, s.name+":"+kind)
	}
	for kind := range semaphores {
		parts = append(parts, s.name+":"+kind)
	}
	return append(parts, s.name+":number", s.name+":tasks")
}

func begin(t *testing.T, p, other *process) *state {
	t.Helper()
	ctx := t.Context()
	s := &state{
		t: t, name: redistest.Name(t), process: p, other: other, waits: map[string]chan error{},
		serve: make(chan error, 1), served: make(chan struct{}, 1), handler: make(chan error, 1), stopTask: make(chan struct{}),
	}
	var err error
	s.lock, err = p.locks.Mutex(s.name + ":held").Lock(ctx)
	require.NoError(t, err)
	s.grant, err = s.held(p).Acquire(ctx, 1)
	require.NoError(t, err)
	s.permits = p.semaphores.CountingSemaphore(s.name + ":taken")
	_, err = s.permits.TrySetPermits(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, s.permits.Acquire(ctx, 1))

	for kind, mutex := range mutexes {
		l, err := mutex(other, s.name).Lock(ctx)
		require.NoError(t, err)
		s.freeing = append(s.freeing, l.Unlock)
		s.wait(kind+".Lock", s.locks(mutex))
	}
	s.wait("LockFunc", func() error {
		ended := make(chan error, 1)
		p.locks.Mutex(s.name+":Mutex", redislock.WithLease(29*time.Second)).LockFunc(ctx, func(l *redislock.Lock, err error) {
			if err == nil {
				err = l.Unlock(ctx)
			}
			ended <- err
		})
		return <-ended
	})
	for kind, of := range semaphores {
		g, err := of(other, s.name).Acquire(ctx, 1)
		require.NoError(t, err)
		s.freeing = append(s.freeing, g.Release)
		s.wait(kind+".Acquire", s.acquires(of))
	}
	_, err = s.number(other).TrySetPermits(ctx, 0)
	require.NoError(t, err)
	_, err = s.limiter(p).AllowN(ctx, s.name, 2)
	require.NoError(t, err)
	s.wait("CountingSemaphore.Acquire", s.takes)
	s.wait("Wait", func() error { return s.limiter(p).Wait(ctx, s.name) })
	redistest.Poll(t, func() bool {
		return p.locks.Stats().Contended == int64(len(mutexes)+1) &&
			p.semaphores.Stats().Contended == int64(len(semaphores)+1) && p.limits["closed"].Stats().Took.Count() > 1
	})

	s.tasks = p.delays.Queue(s.name + ":tasks")
	ctx, stop := context.WithCancel(ctx)
	running := make(chan struct{})
	go func() {
		s.serve <- s.tasks.Serve(ctx, 2, func(ctx context.Context, task *delay.Task) error {
			if task.ID != "long" {
				select {
				case s.served <- struct{}{}:
				default: // it was scheduled again
				}
				return nil
			}
			close(running)
			select {
			case <-ctx.Done():
				s.handler <- context.Cause(ctx)
			case <-s.stopTask:
				s.handler <- nil
			}
			return nil
		})
	}()
	t.Cleanup(stop)
	require.NoError(t, s.tasks.Schedule(ctx, "long", 0, nil))
	<-running
	return s
}

func (s *state) held(p *process) *semaphore.Semaphore {
	return p.semaphores.Semaphore(s.name+":permits", 1)
}

func (s *state) number(p *process) *semaphore.CountingSemaphore {
	return p.semaphores.CountingSemaphore(s.name + ":number")
}

func (s *state) limiter(p *process) *ratelimit.Limiter {
	return p.limits["closed"].Limiter("awaited", ratelimit.PerHour(2))
}

// locks returns a function that waits for a lock and releases it.
func (s *state) locks(mutex func(*process, string) *redislock.Mutex) func() error {
	return func() error {
		l, err := mutex(s.process, s.name).Lock(s.t.Context())
		if err != nil {
			return err
		}
		return l.Unlock(s.t.Context())
	}
}

// acquires is locks for a Semaphore.
func (s *state) acquires(of func(*process, string) *semaphore.Semaphore) func() error {
	return func() error {
		g, err := of(s.process, s.name).Acquire(s.t.Context(), 1)
		if err != nil {
			return err
		}
		return g.Release(s.t.Context())
	}
}

// takes is locks for a CountingSemaphore.
func (s *state) takes() error {
	if err := s.number(s.process).Acquire(s.t.Context(), 1); err != nil {
		return err
	}
	return s.number(s.process).Release(s.t.Context(), 1)
}

// waitBehind begins to wait behind those that wait already. No script asks for such a waiter at once.
func (s *state) waitBehind() {
	s.t.Helper()
	locks, permits := s.process.locks.Stats().Waiting, s.process.semaphores.Stats().Waiting
	for kind, mutex := range mutexes {
		s.wait(kind+".Lock behind", s.locks(mutex))
	}
	for kind, of := range semaphores {
		s.wait(kind+".Acquire behind", s.acquires(of))
	}
	s.wait("CountingSemaphore.Acquire behind", s.takes)
	s.wait("Wait behind", func() error { return s.limiter(s.process).Wait(s.t.Context(), s.name) })
	redistest.Poll(s.t, func() bool {
		return s.process.locks.Stats().Waiting == locks+len(mutexes) &&
			s.process.semaphores.Stats().Waiting == permits+len(semaphores)+1 && s.process.limits["closed"].Stats().Waiting == 2
	})
}

func (s *state) wait(call string, f func() error) {
	ended := make(chan error, 1)
	s.waits[call] = ended
	go func() { ended <- f() }()
}

// free has another process free all that is awaited.
func (s *state) free() {
	s.t.Helper()
	ctx := s.t.Context()
	for _, f := range s.freeing {
		require.NoError(s.t, f(ctx))
	}
	require.NoError(s.t, s.number(s.other).Release(ctx, 1))
	require.NoError(s.t, s.limiter(s.other).Reset(ctx, s.name))
	require.NoError(s.t, s.other.delays.Queue(s.name+":tasks").Schedule(ctx, "short", 0, nil))
}

// requireGoesOn requires that no call that has begun has ended.
func (s *state) requireGoesOn() {
	s.t.Helper()
	for call, ended := range s.waits {
		require.Empty(s.t, ended, call)
	}
	require.Empty(s.t, s.serve, "Serve")
	require.Empty(s.t, s.handler, "a handler")
}

// requireOver requires that every call that has begun has ended with an error, and that Serve has ended its handler.
func (s *state) requireOver() {
	s.t.Helper()
	for call, ended := range s.waits {
		require.Error(s.t, <-ended, call)
	}
	require.Error(s.t, <-s.serve, "Serve")
	require.Error(s.t, <-s.handler, "a handler")
}

// requireSucceeds requires that every call that has begun succeeds, and that what was released is free, once each.
func (s *state) requireSucceeds() {
	s.t.Helper()
	ctx := redistest.Within(s.t, redistest.Patience/2) // well within a lease
	for call, ended := range s.waits {
		select {
		case err := <-ended:
			require.NoError(s.t, err, call)
		case <-ctx.Done():
			require.Fail(s.t, "it goes on waiting", call)
		}
	}
	<-s.served
	close(s.stopTask)
	require.NoError(s.t, <-s.handler, "a handler")
	l, err := s.other.locks.Mutex(s.name + ":held").Lock(ctx)
	require.NoError(s.t, err)
	require.NoError(s.t, l.Unlock(ctx))
	g, err := s.held(s.other).Acquire(ctx, 1)
	require.NoError(s.t, err)
	require.NoError(s.t, g.Release(ctx))
	redistest.Poll(s.t, func() bool {
		n, err := s.permits.Available(ctx)
		require.NoError(s.t, err)
		require.LessOrEqual(s.t, n, int64(1))
		return n == 1
	})
}

// requireReleasesFail requires that releases fail. Those that go on in the background say so.
func (s *state) requireReleasesFail(goOn bool) {
	s.t.Helper()
	ctx := s.t.Context()
	releases := []struct {
		release     func() error
		unconfirmed error
	}{
		{func() error { return s.lock.Unlock(ctx) }, redislock.ErrUnconfirmed},
		{func() error { return s.grant.Release(ctx) }, semaphore.ErrUnconfirmed},
		{func() error { return s.permits.Release(ctx, 1) }, semaphore.ErrUnconfirmed},
	}
	errs := make([]error, len(releases))
	redistest.Each(s.t, len(releases), func(i int) error {
		errs[i] = releases[i].release()
		return nil
	})
	for i, r := range releases {
		require.Error(s.t, errs[i])
		require.Equal(s.t, goOn, errors.Is(errs[i], r.unconfirmed), "%v", errs[i])
	}
}

// requireDecides requires that the policies decide if it is an outage, and that nothing is granted otherwise.
func (s *state) requireDecides(outage bool) {
	s.t.Helper()
	policies := slices.Collect(maps.Keys(s.process.limits))
	redistest.Each(s.t, len(policies), func(i int) error { // a migrating slot takes each of them its timeout
		policy := policies[i]
		r, err := s.process.limits[policy].Limiter("asked", ratelimit.PerHour(100)).Allow(s.t.Context(), s.name)
		unavailable := errors.Is(err, ratelimit.ErrUnavailable)
		switch {
		case outage && policy == "closed" && unavailable, outage && policy != "closed" && err == nil && r.Allowed:
		case !outage && err != nil && !unavailable && !r.Allowed:
		default:
			return fmt.Errorf("%s: allowed is %t, with the error %w", policy, r.Allowed, err)
		}
		return nil
	})
}

// requireRefused requires that calls which begin fail at once.
func (s *state) requireRefused() {
	s.t.Helper()
	ctx := s.t.Context()
	_, err := s.process.locks.Mutex(s.name + ":new").Lock(ctx)
	require.Error(s.t, err, "Lock")
	_, err = s.process.semaphores.Semaphore(s.name+":new permits", 1).Acquire(ctx, 1)
	require.Error(s.t, err, "Acquire")
	require.Error(s.t, s.process.delays.Queue(s.name+":new").Schedule(ctx, "id", 0, nil), "Schedule")
}

// requireRefusedBehind requires that a call that begins now is refused, also behind those that wait.
func (s *state) requireRefusedBehind() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), redistest.Patience)
	defer cancel()
	for kind, of := range semaphores {
		_, err := of(s.process, s.name).Acquire(ctx, 1)
		require.True(s.t, redisconn.IsLoginRefused(err), "%s: %v", kind, err)
	}
	err := s.number(s.process).Acquire(ctx, 1)
	require.True(s.t, redisconn.IsLoginRefused(err), "CountingSemaphore: %v", err)
	err = s.limiter(s.process).Wait(ctx, s.name)
	require.True(s.t, redisconn.IsLoginRefused(err), "Limiter: %v", err)
}

// Each package does what the class of an answer says: calls that have begun go on through outages and refused logins,
// the policies decide in outages alone, and everything else is an error at once.
// Guarantees: L11, L38, Q5, Q19, S11, D20.
func TestAnswers(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	other := newProcess(t, redistest.Wheel(t), redistest.Shared(t).Client(t))
	run := func(row redistest.Answer, executed bool) {
		what := row.Text
		if executed {
			what += ", after the call"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dialer := &redistest.FaultDialer{}
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial })
			s := begin(t, newProcess(t, redistest.Wheel(t), rdb), other)
			outage := row.Class == "unavailable"
			goOn := outage || row.Class == "login refused"

			dialer.Answer("evalsha", row.Text, executed)
			s.free()
			s.requireReleasesFail(goOn)
			s.requireDecides(outage)
			if !redisconn.Migrating(answer(row.Text)) { // then they wait
				s.requireRefused()
			}
			if !goOn {
				s.requireOver()
				dialer.Answer("", "", false)
				return
			}
			redistest.Poll(t, func() bool {
				return !slices.ContainsFunc(s.asked(), func(part string) bool { return !dialer.Answered(part) })
			})
			s.requireGoesOn()
			require.Error(t, s.process.locks.Stats().Err)
			require.Error(t, s.process.semaphores.Stats().Err)
			require.Error(t, s.process.delays.Stats().Err)
			for _, message := range []string{
				"redislock: waits and releases fail and are repeated", "semaphore: waits and releases fail and are repeated",
				"delay: calls of Serve fail and are repeated",
			} {
				errs := s.process.log.errors(message) // of a slow machine, there are others too
				require.NotEmpty(t, errs, message)
				slices.Sort(errs)
				require.Equal(t, slices.Compact(slices.Clone(errs)), errs, message)
			}
			dialer.Answer("", "", false)
			require.NoError(t, s.limiter(other).Reset(t.Context(), s.name)) // of permits whose grants were lost
			s.requireSucceeds()
		})
	}
	for _, row := range redistest.Answers(t) {
		run(row, false)
		switch row.Text {
		case "upstream failure", "ERR server closed connection", "ERR redis temporary failure":
			run(row, true)
		}
	}
}

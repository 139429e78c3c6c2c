package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	lease = redistest.SafeLease
	// slack is for a machine that stands still, and for pauses between tries.
	slack = 2 * time.Second
	// oldest is the age up to which a connection to a former primary is used for renewals. The last renewal before that
	// was parted, and the first one after that age, are a third of the lease earlier and later at most.
	oldest = time.Second
)

// With each kind of client, and however it reaches its servers, the library keeps its promises through what happens to
// servers and connections, or it refuses the client, or its Check says which promise does not hold.
// Guarantees: L13, L38, L40, S1, S3, S6, D2, D9.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, event := range serverEvents {
		for _, on := range event.on {
			t.Run(fmt.Sprint(on, "/", event.name), func(t *testing.T) {
				t.Parallel()
				if on != oneServer || event.inject != nil {
					redistest.SkipIfShort(t)
				}
				if !testsize.Alone() && !slices.Contains(event.always, on) {
					t.Skip("runs at full size if -run selects it")
				}
				r := newRun(t, on, event)
				if event.inject == nil {
					r.check()
					r.wake()
					r.require()
					return
				}
				r.play()
			})
		}
	}
}

// run has an event happen to all services that it concerns.
type run struct {
	*servers
	event    serverEvent
	wheel    *wheel.Wheel
	services []*service
	stalled  func() time.Duration // for how long the machine has stood still
	parted   time.Time            // the new primary from the old one
	over     time.Time            // the event
}

// service is what a kind of client serves. Its processes are alike.
type service struct {
	name    string
	refused error // by New
	start   func() (*process, error)

	mine    *process // holds what it can from the beginning
	other   *process // waits for that
	late    *process // starts when the event is over
	limiter *process // asks a limiter all the time, and does nothing else

	objects   map[string]*object
	decisions *decisions
	tasks     string // a queue that mine serves
	ran       chan string
	limit     string // a limiter that nobody has used before the event is over
	problems  problems
}

// problems are what is wrong with a service, by what it concerns.
type problems struct {
	mu sync.Mutex
	of map[string]error
}

func (p *problems) add(what string, err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[what] = errors.Join(p.of[what], err)
}

// object is what one process may hold at a time.
type object struct {
	kind, name string
	lost       bool // the new primary does not know the first hold
	history    *history
	contenders map[string]*contender
}

func newRun(t *testing.T, on topology, event serverEvent) *run {
	t.Helper()
	r := &run{servers: startServers(t, on), event: event, wheel: redistest.Wheel(t), stalled: redistest.Stalls(t)}
	poll := time.Second
	if event.inject == nil && on != shards { // whose clients have no messages
		poll = time.Minute
	}
	for _, kind := range clientKinds {
		for _, reach := range reaches {
			if kind.on != on {
				continue
			}
			s := &service{
				name: kind.name + " " + string(reach), objects: map[string]*object{}, ran: make(chan string, 1000),
				problems: problems{of: map[string]error{}},
				start: func() (*process, error) {
					return startProcess(t, kind.connect(r.servers, r.net.dial(reach)), r.wheel, poll)
				},
			}
			var err [3]error
			s.mine, err[0] = s.start()
			s.other, err[1] = s.start()
			s.limiter, err[2] = s.start()
			s.refused = errors.Join(err[:]...)
			r.services = append(r.services, s)
		}
	}
	return r
}

// each calls f for every service that was not refused, for all at the same time.
func (r *run) each(f func(s *service)) {
	r.t.Helper()
	var running sync.WaitGroup
	for _, s := range r.services {
		if s.refused == nil {
			running.Go(func() { f(s) })
		}
	}
	running.Wait()
}

func (r *run) sleep(d time.Duration) { _ = r.wheel.Sleep(r.t.Context(), d) }

// play plays the event to the services, and judges them afterwards.
func (r *run) play() {
	r.each(func(s *service) { s.begin(r) })
	r.require()
	r.sleep(lease/3 + 400*time.Millisecond) // until all was renewed, for which there are connections now
	r.replicate()
	r.event.inject(r)
	r.over = time.Now()
	if !r.parted.IsZero() && r.over.Sub(r.parted)+r.stalled() > lease/3-oldest {
		r.event.keeps = false // what the new primary knew may expire before it hears of a renewal
	}
	r.each(func(s *service) { s.continues(r) })
	r.sleep(time.Until(r.over.Add(lease + slack)))
	r.each(func(s *service) { s.judge(r) })
	r.require()
}

// require reports the problems.
func (r *run) require() {
	r.t.Helper()
	for _, s := range r.services {
		if s.refused != nil {
			r.t.Logf("%s is refused: %v", s.name, s.refused)
		}
		for what, err := range s.problems.of {
			r.t.Errorf("%s: %s: %v", s.name, what, err)
		}
	}
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// begin starts what the service does before the event.
func (s *service) begin(r *run) {
	s.limit, s.tasks = r.place(s.mine.rdb, redistest.Name(r.t)), r.place(s.mine.rdb, redistest.Name(r.t))
	s.decisions = decide(r.t, s.limiter, r.place(s.mine.rdb, redistest.Name(r.t)))
	s.serve(r)
	s.hold(r, "lasting", false)
	for _, o := range s.objects {
		s.contend(r, o, "other", s.other)
	}
}

// hold makes the service hold one more object of each kind.
func (s *service) hold(r *run, when string, lost bool) {
	ctx := redistest.Within(r.t, lease)
	added := map[string]*object{}
	for kind := range exclusives {
		o := &object{
			kind: kind, name: r.place(s.mine.rdb, redistest.Name(r.t)), lost: lost, history: &history{},
			contenders: map[string]*contender{},
		}
		added[when+" "+kind] = o
		s.contend(r, o, "mine", s.mine)
	}
	for what, o := range added {
		if _, ok := o.history.await(ctx, 0, ""); !ok {
			s.problems.add(what, errors.New("not held before the event"))
		}
		s.objects[what] = o
	}
}

func (s *service) contend(r *run, o *object, by string, p *process) {
	o.contenders[by] = contend(r.t, o.history, by, o.kind, p, o.name, lease)
}

// cut is called when what is written to the primary from now on is going to be lost.
func (r *run) cut() {
	r.parted = time.Now()
	r.each(func(s *service) { s.hold(r, "late", true) })
}

// serve makes mine serve a queue until the test ends.
func (s *service) serve(r *run) {
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	r.t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	serving.Go(func() {
		for ctx.Err() == nil {
			err := s.queue(s.mine).Serve(ctx, 1, func(_ context.Context, task *delay.Task) error {
				s.ran <- task.ID
				return nil
			})
			if err != nil {
				_ = r.wheel.Sleep(ctx, 50*time.Millisecond)
			}
		}
	})
}

func (s *service) queue(p *process) *delay.Queue {
	return p.delays.Queue(s.tasks, delay.WithLease(lease))
}

// fillPools fills the pools of the services with idle connections to the first primary.
func (r *run) fillPools() {
	const call = "blpop"
	r.each(func(s *service) {
		for p, n := range map[*process]int{s.mine: poolSize / 4, s.limiter: poolSize} {
			ctx := context.Background()
			var calls sync.WaitGroup
			for range n {
				calls.Go(func() { _ = p.rdb.Do(ctx, call, s.limit, "0.3").Err() })
				calls.Go(func() {
					_, _ = p.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
						p.Do(ctx, call, s.limit, "0.3")
						return nil
					})
				})
			}
			calls.Wait()
		}
	})
}

// continues starts another process, and makes calls that must succeed as soon as they do with plain go-redis.
func (s *service) continues(r *run) {
	var err error
	if s.late, err = s.start(); err != nil {
		s.problems.add("start", err)
		return
	}
	for _, o := range s.objects {
		if o.lost {
			s.contend(r, o, "late", s.late)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), redistest.Patience)
	defer cancel()
	plain, err := until(ctx, r.wheel, func(ctx context.Context) error {
		return s.mine.rdb.Set(ctx, s.tasks+":set", 1, 0).Err()
	})
	if err != nil {
		s.problems.add("SET", fmt.Errorf("after %v: %w", plain, err))
		return
	}
	name := s.tasks + ":"
	calls := map[string]func(context.Context) error{
		"TryLock": func(ctx context.Context) error { return second(s.mine.locks.Mutex(name + "lock").TryLock(ctx)) },
		"TryAcquire": func(ctx context.Context) error {
			permits := s.mine.permits.Semaphore(name+"permits", 1)
			return second(permits.TryAcquire(ctx, 1))
		},
		"Schedule": func(ctx context.Context) error {
			return s.mine.delays.Queue(name+"queue").Schedule(ctx, "task", time.Hour, nil)
		},
	}
	if !r.event.kept && r.event.warns == "" {
		calls["a limit of all processes"] = s.sharesLimit
		calls["a task runs"] = s.runsTask
	}
	var calling sync.WaitGroup
	for what, call := range calls {
		calling.Go(func() {
			if took, err := until(ctx, r.wheel, call); err != nil || took > lease && !r.event.silent {
				s.problems.add(what, fmt.Errorf("after %v: %w", took, err))
			}
		})
	}
	calling.Wait()
}

// sharesLimit returns nil if mine is denied what late has taken.
func (s *service) sharesLimit(ctx context.Context) error {
	if err := second(limiterOf(s.late, s.limit).AllowUpTo(ctx, s.limit, permitsOfLimit)); err != nil {
		return err
	}
	result, err := limiterOf(s.mine, s.limit).Allow(ctx, s.limit)
	if err == nil && result.Allowed {
		err = errors.New("granted twice")
	}
	return err
}

// runsTask returns nil when mine has run a task that late has scheduled.
func (s *service) runsTask(ctx context.Context) error {
	if err := s.queue(s.late).Schedule(ctx, "task", 0, nil); err != nil {
		return err
	}
	select {
	case <-s.ran:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// judge adds the problems that the event has made, and lets another process have what one holds.
func (s *service) judge(r *run) {
	s.problems.add("limits", s.decisions.judge(r.over, slack+r.stalled()))
	var judging sync.WaitGroup
	for what, o := range s.objects {
		if longest, _ := o.history.shared(); r.event.warns != "" {
			r.t.Logf("%s: %s: shared for %v", s.name, what, longest)
			continue
		}
		judging.Go(func() {
			if err := o.judge(r); err != nil {
				s.problems.add(what, fmt.Errorf("%w%s", err, o.history.describe(r.over)))
			}
		})
	}
	judging.Wait()
	if r.event.warns != "" {
		for _, report := range s.mine.check(r, s.limit) {
			warned := slices.ContainsFunc(report.Findings, func(f cogwheel.Finding) bool {
				return f.Level == cogwheel.LevelWarning && strings.Contains(f.Text, r.event.warns)
			})
			if report.Package != "ratelimit" && !warned {
				s.problems.add("Check of "+report.Package, fmt.Errorf("does not warn of %q", r.event.warns))
			}
		}
	}
}

func (o *object) judge(r *run) error {
	longest, last := o.history.shared()
	most := time.Duration(0)
	switch { // see L40
	case r.event.kept:
		most = 2*lease/3 + slack
	case r.event.splits:
		most = lease/3 + slack
	case o.kind == "Queue":
		most = slack // its context ends by a timer
	}
	if most > 0 {
		most += r.stalled()
	}
	if longest > most {
		return fmt.Errorf("two hold it for %v, until %v after the event", longest, last.Sub(r.over))
	}
	by, holds := "", 0
	if _, err := until(redistest.Within(r.t, lease+slack), r.wheel, func(context.Context) error {
		if by, holds = o.history.holder(); by == "" {
			return errors.New("nobody holds it")
		}
		return nil
	}); err != nil {
		return err
	}
	if r.event.keeps && !o.lost && !r.event.kept && !o.history.firstLasts() && r.stalled() < slack {
		return errors.New("lost")
	}
	o.contenders[by].stop()
	if took, ok := o.history.await(redistest.Within(r.t, lease+slack), holds, by); !ok {
		return fmt.Errorf("%s has left, and nobody gets it in %v", by, took)
	}
	return nil
}

// wake lets services wait for each other.
func (r *run) wake() {
	n := len(r.services)
	for i := range r.services {
		for _, step := range []int{1, max(n/2, 2)} { // the next reach, and the other kind of client
			r.wakes(r.services[i], r.services[(i+step)%n])
		}
	}
}

// wakes requires that what one service gives back goes to another at once, by a message.
func (r *run) wakes(from, to *service) {
	r.t.Helper()
	if from.refused != nil || to.refused != nil {
		return
	}
	objects := map[string]*object{}
	for kind := range exclusives {
		o := &object{kind: kind, name: r.place(from.mine.rdb, redistest.Name(r.t)), history: &history{}}
		objects[kind] = o
		o.contenders = map[string]*contender{
			"from": contend(r.t, o.history, "from", kind, from.mine, o.name, time.Minute),
		}
	}
	ctx := redistest.Within(r.t, redistest.Patience)
	for kind, o := range objects {
		_, ok := o.history.await(ctx, 0, "")
		require.True(r.t, ok, kind)
		o.contenders["to"] = contend(r.t, o.history, "to", kind, to.mine, o.name, time.Minute)
	}
	redistest.Poll(r.t, func() bool { return to.mine.locks.Stats().Waiting+to.mine.permits.Stats().Waiting == 3 })
	for kind, o := range objects {
		o.contenders["from"].stop()
		if took, ok := o.history.await(redistest.Within(r.t, 2*slack), 1, "from"); !ok {
			r.t.Errorf("%s gives a %s back, and %s does not get it in %v", from.name, kind, to.name, took)
		}
		o.contenders["to"].stop()
	}
}

// check requires that no Check reports a failure.
func (r *run) check() {
	r.each(func(s *service) {
		for _, report := range s.mine.check(r, redistest.Name(r.t)) {
			if report.Level() == cogwheel.LevelFailure {
				s.problems.add("Check of "+report.Package, report.Err())
			}
		}
	})
}

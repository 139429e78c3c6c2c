package calls

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// width is the number of batches to a node that may be in flight while Redis answers. One would give the largest
	// batches; with two, a call waits for half a round trip on average.
	width = 2

	// aloneWidth is the width of a line whose calls do not share batches.
	aloneWidth = 32

	// maxBatch is the maximum number of calls in a batch.
	maxBatch = 500

	// stalledAfter is the age from which a batch in flight is stalled: another may take its place, because its
	// connection may be dead and others well.
	stalledAfter = 20 * time.Millisecond

	// maxStalled is the maximum number of stalled batches of a node.
	maxStalled = 16

	// Patience and maxYields bound how long a batch waits for callers that are about to come. Yields are counted
	// because time stands still in a bubble of testing/synctest.
	Patience  = 50 * time.Microsecond
	maxYields = 500

	// perCall is the longest time for each call of a batch if the server is near.
	perCall = 16 * time.Microsecond
)

// line sends the calls to one node. A call is sent at once if fewer than width batches are in flight. Otherwise it
// joins the next batch. So few calls have a low latency, and many calls a low cost.
type line struct {
	sender *Sender
	route  route
	width  int
	most   int // maximum number of calls in a batch

	// mu guards the fields below. While queue is not empty, width flights are not stalled or stalled is maxStalled, and
	// watch is scheduled on the wheel. While queue is empty, it is not, so Close leaves no entry.
	mu        sync.Mutex
	queue     []*Job
	flights   []*flight // not stalled
	stalled   int
	watches   bool // for stalled flights, by an entry on the wheel
	nextWatch wheel.Timer
	came      uint64    // number of calls since the line was made
	asked     time.Time // when lone was asked last
	quick     int       // how often in a row soon after the time before
	era       int       // number of times that flights were forgotten

	health    *healthCheck // in progress
	checkedAt time.Time    // when the last health check began
	found     error        // result of the last health check
}

// flight is a goroutine that sends one batch after another.
type flight struct {
	sentAt  time.Time
	stalled bool // another flight may have taken its place
	era     int  // of the line, when the flight stalled
}

// add queues a job. If here is true and the job can be sent at once, the calling goroutine sends it.
func (l *line) add(j *Job, here bool) {
	l.mu.Lock()
	l.came++
	l.queue = append(l.queue, j)
	if len(l.flights) < l.width {
		f := l.beginLocked()
		l.mu.Unlock()
		if here {
			l.flyOnce(f)
		} else {
			l.sender.Workers.Go(func() { l.fly(f) })
		}
		return
	}
	l.watchStalledLocked()
	l.mu.Unlock()
}

// lone reports whether calls have come one by one for a while, in quick succession, and nothing else is being sent. It
// returns the time too, because it has read the clock, unless something is being sent. A slower caller does not feel
// two goroutine switches, and its process needs no further connection.
func (l *line) lone() (now time.Time, lone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue)+len(l.flights)+l.stalled > 0 || l.health != nil {
		return now, false
	}
	if now = l.sender.Wheel.Now(); now.Sub(l.asked) > soloWithin {
		l.quick = 0
	}
	l.asked = now
	l.quick++
	return now, l.quick > soloAfter
}

// beginLocked adds a flight.
func (l *line) beginLocked() *flight {
	f := &flight{sentAt: l.sender.Wheel.Now()}
	l.flights = append(l.flights, f)
	return f
}

// watchStalledLocked schedules watch. If the wheel is stopped, it replaces stalled flights at once.
func (l *line) watchStalledLocked() {
	if l.watches {
		return
	}
	var err error
	if l.nextWatch, err = wheelentry.AfterFunc(l.sender.Wheel, stalledAfter, l.watch); err != nil {
		l.replaceStalledLocked()
		return
	}
	l.watches = true
}

// watch replaces stalled flights while calls are queued.
func (l *line) watch(error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watches = false
	if len(l.queue) == 0 {
		return
	}
	l.replaceStalledLocked()
	if len(l.queue) > 0 {
		l.watchStalledLocked()
	}
}

// replaceStalledLocked begins new flights in place of stalled ones.
func (l *line) replaceStalledLocked() {
	now := l.sender.Wheel.Now()
	l.flights = slices.DeleteFunc(l.flights, func(f *flight) bool {
		f.stalled = now.Sub(f.sentAt) >= stalledAfter && l.stalled < maxStalled
		if f.stalled {
			f.era = l.era
			l.stalled++
		}
		return f.stalled
	})
	for n := len(l.queue); n > 0 && len(l.flights) < l.width; n -= l.most {
		f := l.beginLocked()
		l.sender.Workers.Go(func() { l.fly(f) })
	}
}

// forgetStalled no longer counts the stalled flights: their connections are bad, and the node is well.
func (l *line) forgetStalled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.era++
	l.stalled = 0
	l.replaceStalledLocked()
}

// fly sends batches until no call is queued or the flight is stalled.
func (l *line) fly(f *flight) {
	for jobs := l.next(f); jobs != nil; jobs = l.next(f) {
		l.carry(f, jobs)
	}
}

// flyOnce sends one batch on the goroutine of a caller. Another goroutine continues the flight.
func (l *line) flyOnce(f *flight) {
	jobs := l.next(f)
	if jobs == nil {
		return
	}
	l.carry(f, jobs)
	l.mu.Lock()
	over := len(l.queue) == 0 || f.stalled
	if over {
		l.endLocked(f)
	}
	l.mu.Unlock()
	if !over {
		l.sender.Workers.Go(func() { l.fly(f) })
	}
}

// next returns the jobs of the next batch, or nil if the flight has ended.
func (l *line) next(f *flight) []*Job {
	if l.sender.Prepare != nil {
		l.sender.Prepare()
	}
	return l.take(f)
}

// take removes the jobs of the next batch from the queue and builds their calls.
func (l *line) take(f *flight) []*Job {
	for {
		l.mu.Lock()
		if f.stalled || len(l.queue) == 0 {
			l.endLocked(f)
			l.mu.Unlock()
			return nil
		}
		jobs := l.queue
		if len(jobs) > l.most {
			jobs = slices.Clone(jobs[:l.most])
			l.queue = l.queue[l.most:]
		} else {
			l.queue = nil
			if l.watches && l.nextWatch.Stop() {
				l.watches = false
			}
		}
		f.sentAt = l.sender.Wheel.Now()
		l.mu.Unlock()
		if jobs = slices.DeleteFunc(jobs, func(j *Job) bool { return !j.build() }); len(jobs) > 0 {
			return withNext(jobs)
		}
	}
}

// withNext returns the jobs, each with its Call.Next behind it.
func withNext(jobs []*Job) []*Job {
	if !slices.ContainsFunc(jobs, func(j *Job) bool { return j.call.Next != nil }) {
		return jobs
	}
	all := make([]*Job, 0, len(jobs)+1)
	for _, j := range jobs {
		all = append(all, j)
		if next := j.takeNext(); next != nil {
			all = append(all, next)
		}
	}
	return all
}

// takeNext returns the job of Call.Next, if there is one. A later try of j has none.
func (j *Job) takeNext() *Job {
	next := j.call.Next
	if j.call.Next = nil; next == nil {
		return nil
	}
	j.line.sender.Gate.EnterInside()
	if next.key, next.line, next.follows = j.key, j.line, true; !next.build() {
		return nil
	}
	return next
}

// endLocked ends a flight.
func (l *line) endLocked(f *flight) {
	if f.stalled {
		if f.era == l.era {
			l.stalled--
		}
		f.stalled = false
		return
	}
	l.flights = slices.DeleteFunc(l.flights, func(g *flight) bool { return g == f })
}

// carry sends a batch and passes on its replies.
func (l *line) carry(f *flight, jobs []*Job) {
	lone := jobs[0].call.Values != nil // a job without Values may have several callers
	n := len(jobs)
	for _, j := range jobs {
		if j.follows {
			n--
		}
	}
	l.sendBatch(jobs, func() { l.sender.execute(jobs) }, func() {
		handleReplies(jobs)
		l.fly(f)
	})
	near := l.sender.Wheel.Now().Sub(f.sentAt) < time.Duration(n)*perCall
	expected := l.arrived() + uint64(n)
	handleReplies(jobs)
	switch {
	case n > 1 && !near:
		// On a slow network, the callers of this batch and those that came in between would form two groups that wait
		// for each other's round trips.
		Gather(func() bool { return l.arrived() >= expected })
	case n > 1 || !lone:
		runtime.Gosched()
	}
}

// handleReplies gives each job its reply: the job ends, or is sent again later.
func handleReplies(jobs []*Job) {
	for len(jobs) > 0 {
		j := jobs[0]
		jobs = jobs[1:]
		if len(jobs) > 0 && jobs[0].follows {
			next := jobs[0]
			jobs = jobs[1:]
			j.reply.Followed = j.reply.Err() == nil && next.reply.Err() == nil && scripts.InOrder(j.reply.Cmd)
			next.follows = false // it may be sent again, alone
			next.tried()
		}
		j.tried()
	}
}

// Gather yields until callers that are about to come have come, at most for Patience.
func Gather(come func() bool) {
	began := time.Now() //nolint:forbidigo // the bound is processor time
	for range maxYields {
		runtime.Gosched()
		if come() || time.Since(began) >= Patience { //nolint:forbidigo // as above
			return
		}
	}
}

// arrived returns the number of calls since the line was made.
func (l *line) arrived() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}

// sendBatch sends the calls of jobs, by execute. Each job then has a reply, even if a hook of the redis client fails.
// If the hook has ended the goroutine, goOn continues on another one.
func (l *line) sendBatch(jobs []*Job, execute, goOn func()) {
	sentAt := l.sender.Wheel.Now()
	for _, j := range jobs {
		j.reply.Cmd, j.reply.SentAt, j.reply.Followed = nil, sentAt, false
	}
	usercode.Here(execute, func(failure *usercode.Failure) {
		for _, j := range jobs {
			if j.reply.Cmd == nil {
				j.reply.Cmd = Failed(hookFailed(failure))
			}
		}
		if failure.Exited {
			l.sender.Workers.Go(goOn)
		}
	})
}

// hookFailed returns the error of what a hook of the redis client has not let through.
func hookFailed(f *usercode.Failure) error { return fmt.Errorf("a hook of the redis client %w", f) }

// execute sends the calls of jobs, several in one pipeline.
func (s *Sender) execute(jobs []*Job) {
	if len(jobs) == 1 {
		s.executeOne(jobs[0], s.Client)
		return
	}
	batch := make([]scripts.Call, len(jobs))
	for i, j := range jobs {
		batch[i] = j.call.Call
	}
	for i, cmd := range s.runBatch(batch) {
		jobs[i].reply.Cmd = cmd
	}
}

// executeOne sends the call of a job by c.
func (s *Sender) executeOne(j *Job, c scripts.Client) {
	ctx := context.Background()
	if j.call.Values != nil {
		ctx = context.WithoutCancel(j.call.Values)
	}
	if j.call.Send != nil {
		j.reply.Cmd = j.call.Send(ctx)
		return
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	j.reply.Cmd = j.call.Script.RunOnce(ctx, c, j.call.Keys, j.call.Args...)
}

// runBatch executes the calls of a batch in one pipeline. They share scripts if one server is known to have all keys.
func (s *Sender) runBatch(batch []scripts.Call) []*redis.Cmd {
	ctx, cancel := s.bounded(context.Background())
	defer cancel()
	if !slices.ContainsFunc(batch, scripts.Call.Sharable) || !s.Shares() {
		return scripts.RunBatch(ctx, s.Client, batch)
	}
	cmds, crossSlot := scripts.RunShared(ctx, s.Client, batch)
	if crossSlot {
		s.Separate()
	}
	return cmds
}

// Shares reports whether calls share scripts, which requires proof that one server has all keys. The first call
// begins the proof in the background.
func (s *Sender) Shares() bool { return !s.NoSharing && s.proof.Holds(s.background) }

// Separate ends the sharing of scripts for good.
func (s *Sender) Separate() { s.proof.Refute() }

// bounded returns ctx with Timeout.
func (s *Sender) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.Timeout)
}

// background runs f in the background. It returns false if the Client is closed.
func (s *Sender) background(f func()) bool {
	if !s.Gate.Enter() {
		return false
	}
	s.Workers.Go(func() {
		defer s.Gate.Leave()
		f()
	})
	return true
}

// lines holds the line of each node.
type lines struct {
	first atomic.Pointer[line] // the first shared one; with a single server there is no other

	mu  sync.Mutex
	all map[route]*line
}

type route struct {
	node  string
	known bool
	alone bool
}

// line returns the line of a key. It does not block.
func (s *Sender) line(key string) *line {
	addr, known := redisconn.NodeAddr(s.Base, key)
	return s.lineOf(route{node: addr, known: known})
}

// aloneLine is line for calls with Call.Send.
func (s *Sender) aloneLine(key string) *line {
	addr, known := redisconn.NodeAddr(s.Base, key)
	return s.lineOf(route{node: addr, known: known, alone: true})
}

// lineOf returns the line of a route. Calls whose node is unknown share no batches, because in a pipeline to several
// nodes the slowest would delay the others.
func (s *Sender) lineOf(r route) *line {
	if l := s.lines.first.Load(); l != nil && l.route == r {
		return l
	}
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	l := s.lines.all[r]
	if l == nil {
		if s.lines.all == nil {
			s.lines.all = make(map[route]*line)
		}
		l = &line{sender: s, route: r, width: width, most: maxBatch}
		if r.alone || !r.known {
			l.width, l.most = aloneWidth, 1
		} else {
			s.lines.first.CompareAndSwap(nil, l)
		}
		s.lines.all[r] = l
	}
	return l
}

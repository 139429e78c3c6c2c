package ratelimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// flight is one pipeline under way, and the context of its commands. It ends when the first of its callers
// has waited as long as the Client's timeout: then the policy decides, whatever becomes of the commands.
type flight struct {
	sender  *sender
	jobs    []*job
	sentAt  time.Time
	expires time.Time
	timer   wheel.Timer
	ended   chan struct{} // closed when it has expired
	expired atomic.Bool
	settled atomic.Bool
}

// newFlight returns a flight, or nil if its time is over before it has begun.
func (s *sender) newFlight(jobs []*job) *flight {
	now := s.client.wheel.Now()
	at := s.client.since(now)
	since := at
	for _, j := range jobs {
		since = min(since, j.since)
	}
	left := s.client.timeout - (at - since)
	if left <= 0 {
		return nil
	}
	f := &flight{sender: s, jobs: jobs, sentAt: now, expires: time.Now().Add(left), ended: make(chan struct{})}
	timer, err := wheelentry.AfterFunc(s.client.wheel, left, f.timeUp)
	if err != nil {
		f.useRuntimeTimer()
	}
	f.timer = timer
	return f
}

// timeUp is the callback of the flight's entry on the wheel.
func (f *flight) timeUp(stopped error) {
	if stopped != nil {
		f.useRuntimeTimer()
		return
	}
	f.expire()
}

// useRuntimeTimer keeps the deadline of a flight whose wheel is stopped or full.
func (f *flight) useRuntimeTimer() {
	time.AfterFunc(time.Until(f.expires), func() { //nolint:forbidigo // there is no wheel
		if !f.settled.Load() {
			f.expire()
		}
	})
}

func (f *flight) Deadline() (time.Time, bool) { return f.expires, true }
func (f *flight) Done() <-chan struct{}       { return f.ended }

// Value tells whose flight it is.
func (f *flight) Value(key any) any {
	if key == (clientKey{}) {
		return f.sender.client
	}
	return nil
}

func (f *flight) Err() error {
	if f.expired.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// send asks Redis and settles the jobs. It returns false if the flight expired meanwhile.
func (f *flight) send() bool {
	s, jobs := f.sender, f.jobs
	c := s.client
	c.monitor.scripts.Add(int64(len(jobs)))
	var one [1]*redis.Cmd
	cmds := one[:]
	if len(jobs) == 1 {
		s := jobs[0].state
		cmds[0] = c.run(f, s.algorithm, s.id.key, &jobs[0].ask)
	} else {
		calls := make([]scripts.Call, len(jobs))
		for i, j := range jobs {
			calls[i] = j.state.algorithm.encode(j.state.id.key, &j.ask)
		}
		cmds = scripts.RunBatch(f, c.rdb, calls)
		for i, j := range jobs {
			if log, ok := j.state.algorithm.(*slidingLog); ok && log.follow(cmds[i].Err()) {
				cmds[i] = c.run(f, log, j.state.id.key, &j.ask)
			}
		}
	}
	at := reading{sent: c.since(f.sentAt), got: c.now()}
	c.monitor.took.Add(at.got - at.sent)
	if !f.settled.CompareAndSwap(false, true) {
		for i, j := range jobs {
			if j.kind == jobLine { // the callers of the others have gone
				if got, err := f.answer(j, cmds[i], at); err == nil {
					j.settleLate(got)
				}
			}
			j.over()
		}
		return false
	}
	f.timer.Stop()
	var down error
	failed := jobs[0].state
	for i, j := range jobs {
		if j.got, j.err = f.answer(j, cmds[i], at); errors.Is(j.err, ErrUnavailable) {
			down, failed = j.err, j.state
		}
	}
	c.breaker.heard(down, failed) // however many they are, they are one call to it
	s.settle(jobs, nil, at, f.sentAt)
	return true
}

// run sends one script. If a limit turns out to have the other scope, it sends the script once more.
func (c *Client) run(ctx context.Context, a algorithm, key string, what *ask) *redis.Cmd {
	call := a.encode(key, what)
	cmd := call.Script.Run(ctx, c.rdb, call.Keys, call.Args...)
	if log, ok := a.(*slidingLog); ok && log.follow(cmd.Err()) {
		call = a.encode(key, what)
		cmd = call.Script.Run(ctx, c.rdb, call.Keys, call.Args...)
	}
	return cmd
}

// answer reads a reply.
func (f *flight) answer(j *job, cmd *redis.Cmd, at reading) (answer, error) {
	s := j.state
	reply, err := scripts.Integers(cmd)
	var got answer
	if err == nil {
		got, err = s.algorithm.decode(&j.ask, reply, at)
	}
	if err != nil {
		return answer{}, explain(context.Background(), err) // its own end is an outage
	}
	return got, nil
}

// expire decides the jobs of a flight that takes too long, and has others sent in its place.
func (f *flight) expire() {
	for _, j := range f.jobs {
		j.hold() // send has not returned yet
	}
	f.expired.Store(true)
	close(f.ended)
	if !f.settled.CompareAndSwap(false, true) {
		for _, j := range f.jobs {
			j.over()
		}
		return
	}
	s, err := f.sender, unavailable(errTimeout)
	s.client.breaker.heard(err, f.jobs[0].state)
	s.settle(f.jobs, err, reading{sent: s.client.since(f.sentAt)}, f.sentAt)
	if jobs := s.take(); jobs != nil {
		go s.run(jobs)
	}
}

// clientKey is the key under which the context of a command tells the Client that sends it.
type clientKey struct{}

// bound sees to it that commands of flights end with them, if rdb is of a kind for which that can be done,
// and reports whether they do. A *redis.Client does not look at deadlines unless told so by its options, so
// these commands take a client that has the same connections and other options, on the way through the hooks
// of rdb.
func (c *Client) bound() bool {
	switch rdb := c.base.(type) {
	case *redis.Client:
		timeout := c.timeout
		if read := rdb.Options().ReadTimeout; read > 0 {
			timeout = min(timeout, read)
		}
		timed := rdb.WithTimeout(timeout)
		timed.Options().ContextTimeoutEnabled = true // WithTimeout has copied the options
		rdb.AddHook(boundHook{c, timed})
		return true
	case *redis.ClusterClient:
		return rdb.Options().ContextTimeoutEnabled
	}
	return false
}

// boundHook has the commands of one Client's flights processed by another redis client.
type boundHook struct {
	client *Client
	timed  *redis.Client
}

func (h boundHook) mine(ctx context.Context) bool { return ctx.Value(clientKey{}) == h.client }

func (boundHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h boundHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.mine(ctx) {
			return h.timed.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (h boundHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !h.mine(ctx) {
			return next(ctx, cmds)
		}
		pipe := h.timed.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd) // only queues
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}

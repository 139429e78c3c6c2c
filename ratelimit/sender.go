package ratelimit

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// maxFlights is how many pipelines to one node are under way at most. One would make the largest pipelines; with a second
// those who arrive meanwhile wait for half a round trip on average, and go on if a connection goes dead.
const maxFlights = 2

// job is one script of a lane: what its calls ask for.
type job struct {
	lane  *lane
	calls []*call
	one   [1]*call      // room for the calls if it is one
	fifo  bool          // the first denial denies the rest
	done  chan struct{} // closed when it is decided; nil if the calls have channels of their own

	last  view
	ahead *call // what is charged in advance
}

// all are the calls that the script decides.
func (j *job) all() []*call {
	if j.ahead == nil {
		return j.calls
	}
	return append(slices.Clip(j.calls), j.ahead)
}

// sender carries the scripts of many lanes to one node. A job that finds few enough pipelines under way is sent at once;
// others join the next pipeline, as callers of one key join its next script.
//
// Ground rules. mu guards the fields below it. Whoever raises flights executes jobs until queue is empty, and lowers it.
type sender struct {
	client *Client
	script *scripts.Script // nil: of one lane, whose scripts travel alone

	mu      sync.Mutex
	flights int
	queue   []*job
}

// submit sends a job, or leaves it to the next pipeline. It blocks only if ctx allows; see mayBlock.
func (s *sender) submit(ctx context.Context, j *job) {
	s.mu.Lock()
	if s.flights >= s.width() {
		s.queue = append(s.queue, j)
		s.mu.Unlock()
		return
	}
	s.flights++
	s.mu.Unlock()
	if !s.client.senders.mayBlock(ctx) {
		go s.run([]*job{j})
		return
	}
	s.execute(ctx, []*job{j})
	if jobs := s.take(); jobs != nil {
		go s.run(jobs)
	}
}

// do sends a job and waits until it is decided or ctx ends.
func (s *sender) do(ctx context.Context, j *job) error {
	j.done = make(chan struct{})
	s.submit(ctx, j)
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sender) width() int {
	if s.script == nil {
		return math.MaxInt // a lane has one for itself, and keeps its own order
	}
	return maxFlights
}

func (s *sender) run(jobs []*job) {
	for jobs != nil {
		s.execute(context.Background(), jobs)
		jobs = s.take()
	}
}

// take returns the jobs of the next pipeline, or ends the flight.
func (s *sender) take() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.queue
	if s.queue = nil; jobs == nil {
		s.flights--
	}
	return jobs
}

// execute has jobs decided, by Redis or by the policy, tells the callers, and queues what has come up in their lanes meanwhile.
func (s *sender) execute(ctx context.Context, jobs []*job) {
	for _, j := range jobs {
		l := j.lane
		l.mu.Lock()
		j.last = l.view
		l.mu.Unlock()
		if l.extra > 0 && j.done == nil {
			j.ahead = &call{n: l.extra}
		}
	}
	if err := s.client.breaker.refuse(); err != nil {
		for _, j := range jobs {
			j.lane.settle(j, nil, err, time.Time{})
		}
	} else {
		s.ask(ctx, jobs)
	}
	callers := 0
	for _, j := range jobs {
		if j.done != nil {
			close(j.done)
			if !j.fifo {
				s.client.leave() // a line waits for its own
			}
			continue
		}
		callers += len(j.calls)
		for _, c := range j.calls {
			c.done <- struct{}{}
		}
	}
	if callers > 1 {
		runtime.Gosched() // those who come back at once make the next script
	}
	for _, j := range jobs {
		if j.done != nil {
			continue
		}
		if calls := j.lane.compose(); calls != nil {
			s.mu.Lock()
			s.queue = append(s.queue, &job{lane: j.lane, calls: calls})
			s.mu.Unlock()
		} else {
			s.client.leave()
		}
	}
}

// ask has Redis decide jobs. However many there are, they are one call to the breaker.
func (s *sender) ask(ctx context.Context, jobs []*job) {
	c := s.client
	c.stats.scripts.Add(int64(len(jobs)))
	sentAt := time.Now()
	var down error
	settle := func(j *job, v view, err error) {
		switch {
		case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			err = ctx.Err() // the caller's, whose job it is
		case err != nil:
			if err = explain(j.lane.key, err); errors.Is(err, ErrUnavailable) {
				down = err
			}
		}
		j.lane.settle(j, v, err, sentAt)
	}
	if s.script == nil || len(jobs) == 1 {
		for _, j := range jobs {
			v, err := j.lane.engine.decide(ctx, c.rdb, j.lane.key, j.last, j.all(), j.fifo)
			settle(j, v, err)
		}
	} else {
		calls := make([]scripts.Call, len(jobs))
		for i, j := range jobs {
			calls[i] = j.lane.engine.(batched).encode(j.lane.key, j.all(), j.fifo)
		}
		for i, cmd := range s.script.RunBatch(ctx, c.rdb, calls) {
			v, err := jobs[i].lane.engine.(batched).decode(cmd, jobs[i].all())
			settle(jobs[i], v, err)
		}
	}
	c.breaker.heard(down)
}

// senders are those of one Client: one for each node and script.
type senders struct {
	client   *Client
	patience time.Duration // how long an answer can take at most, by rdb's own timeouts

	mu  sync.Mutex
	all map[route]*sender
}

type route struct {
	node   string
	script *scripts.Script
}

// of returns the sender of a key. Where it cannot be told which node has the key, or not yet, nothing is shared, for in
// a pipeline for several nodes the slowest would hold up the others.
func (s *senders) of(e engine, key string) *sender {
	b, ok := e.(batched)
	node := ""
	switch rdb := s.client.rdb.(type) {
	case *redis.Client:
	case *redis.ClusterClient:
		known, end := context.WithCancel(context.Background())
		end() // what is known already, or an error: to ask may take a server's timeout
		master, err := rdb.MasterForKey(known, key)
		if ok = ok && err == nil; ok {
			node = master.Options().Addr
		}
	default:
		ok = false
	}
	if !ok {
		return &sender{client: s.client}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[route]*sender{}
	}
	r := route{node, b.script()}
	if s.all[r] == nil {
		s.all[r] = &sender{client: s.client, script: r.script}
	}
	return s.all[r]
}

// mayBlock reports whether a caller may wait for Redis on his own goroutine, which is cheaper than to have another do it, but
// keeps him until Redis answers or a timeout of the socket ends it. He may if his deadline, if any, is further away than that.
func (s *senders) mayBlock(ctx context.Context) bool {
	if ctx.Done() == nil {
		return true
	}
	deadline, ok := ctx.Deadline()
	return s.client.breaker.failures.Load() == 0 && s.patience < math.MaxInt64 && (!ok || time.Until(deadline) > s.patience)
}

// patience is how long it takes at most to write a command and to read its reply, once there is a connection: waiting for one
// ends with the context.
func patience(rdb redis.UniversalClient) time.Duration {
	var read, write time.Duration
	switch rdb := rdb.(type) {
	case *redis.Client:
		read, write = rdb.Options().ReadTimeout, rdb.Options().WriteTimeout
	case *redis.ClusterClient:
		read, write = rdb.Options().ReadTimeout, rdb.Options().WriteTimeout
	}
	if read <= 0 || write <= 0 {
		return math.MaxInt64
	}
	return read + write
}

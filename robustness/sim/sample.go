package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Sample carries out the operations of a schedule one after the other, without a bubble, against any server: to
// compare the embedded server with a real one. What depends on time is left out: nothing is waited for, and
// periods and leases last an hour.
type Sample struct {
	*process
	holds map[int][]robustness.Hold
}

// sampleLimit bounds a call of a Sample, far longer than one takes on a machine that is busy with something else.
const sampleLimit = time.Minute

// NewSample makes the clients of a sample.
func NewSample(s *Schedule, rdb *redis.Client) (*Sample, error) {
	s.Faults, s.Client = nil, plainClient // which have a part in how clients are made
	s.Lease = time.Hour
	w := newWorld(s)
	w.start = time.Now()
	w.net = newNetwork(0, 0, 0)
	p, err := w.newProcess()
	if err != nil {
		return nil, err
	}
	_ = p.rdb.Close()
	p.rdb, p.lockers, p.limits, p.delays = rdb, make(map[string]robustness.Locker), nil, nil
	w.admin = p
	p.limits, err = ratelimit.New(rdb, ratelimit.WithWheel(p.wheel), ratelimit.WithPolicy(w.policy()),
		ratelimit.WithTimeout(sampleLimit))
	if err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	for i := range s.Objects {
		s.Objects[i].Limit.Per = time.Hour
		if err := w.prepareOne(context.Background(), i); err != nil {
			return nil, err
		}
	}
	return &Sample{p, make(map[int][]robustness.Hold)}, nil
}

// Do carries an operation out and returns what became of it: "granted", "refused", "released", or the code of
// an error. If the object is held and the operation would hold it for long, it releases a hold instead.
func (s *Sample) Do(o Op) string {
	ctx, cancel := context.WithTimeout(context.Background(), sampleLimit)
	defer cancel()
	object := &s.world.Objects[o.Object]
	if isLimit(object.Kind) {
		limit := object.Limit
		if o.Action == Take {
			o.Action = Try
		}
		l := s.limiterOf(object, limit, o.N)
		if o.Action == Try {
			r, err := l.allow(ctx)
			if err != nil && !r.Allowed { // or a denial that the process knows of
				return "refused"
			}
			return outcome(err, r.Allowed, "")
		}
		if o.Action == Settle {
			r, err := l.reserve(ctx)
			if err != nil { // or a denial
				return "refused"
			}
			return outcome(r.Settle(ctx, o.Used), true, "and settled")
		}
		return outcome(s.world.call(ctx, l, o, nil), true, "")
	}
	if isTasks(object.Kind) {
		if o.Action == Serve {
			return "not served"
		}
		o.Task.Delay += time.Hour
		done, err := callTask(ctx, s.world.queueOf(s.process, o.Object), o, "payload")
		return outcome(err, done, "")
	}
	if held := s.holds[o.Object]; len(held) > 0 && o.Hold > time.Second {
		s.holds[o.Object] = held[1:]
		step, err := held[0].Release(ctx)
		return outcome(err, step == history.Released, "released")
	}
	ask := robustness.Ask{Object: object.Name, N: o.N, Shared: o.Shared, Try: true}
	hold, err := s.lockers[object.Kind].Acquire(ctx, ask)
	if err == nil {
		s.holds[o.Object] = append(s.holds[o.Object], hold)
	}
	if errors.Is(err, robustness.ErrRefused) {
		err = nil
	}
	return outcome(err, hold != nil, "")
}

func outcome(err error, ok bool, note string) string {
	switch {
	case err != nil:
		for _, code := range []string{"OOM", "READONLY", "NOPERM"} {
			if strings.Contains(err.Error(), code) {
				return code
			}
		}
		return err.Error()
	case ok:
		return strings.TrimSpace("granted " + note)
	default:
		return strings.TrimSpace("refused " + note)
	}
}

// Close closes the clients, without the redis client.
func (s *Sample) Close() {
	s.close()
	s.stopWheel()
}

// Embedded starts an embedded server without a bubble.
func Embedded() (rdb *redis.Client, refuse func(fault string, on bool), err error) {
	s := &Schedule{Timeout: sampleLimit, Tick: time.Millisecond}
	w := newWorld(s)
	w.start = time.Now()
	if w.server, err = newServer(w.start); err != nil {
		return nil, nil, err
	}
	w.net = newNetwork(0, 0, 0)
	w.net.serve = w.serve
	p, err := w.newProcess()
	if err != nil {
		return nil, nil, err
	}
	p.stopWheel()
	return p.rdb.(*redis.Client), func(fault string, on bool) {
		if w.server.heal(); on {
			faultOf(fault).inject(w, Fault{For: time.Hour}, func() {})
		}
	}, nil
}

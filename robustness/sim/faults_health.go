package sim

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// healthFaults are those in which a client can be wrong about who the primary is and whether it is well: bad
// connections while new ones work, a failover, answers that nobody knows, and a password that the client does not know
// yet. A schedule has some of these, and is judged more strictly then, or some of the other faults.
var healthFaults = []*FaultKind{
	pool("idle connections reset", func(_ *world, p *process) int { return p.link.reset() }),
	pool("idle connections silent", func(_ *world, p *process) int { return p.link.silence() }),
	pool("idle connections read-only", func(w *world, p *process) int {
		return w.server.outdate(p.link.number)
	}),
	unknown("proxy without a backend", "ERR Proxy error: backend is unavailable"),
	unknown("proxy without an upstream", "upstream failure"),
	unknown("too many requests", "TOO_MANY_REQUESTS slow down"),
	{Name: passwordRotated, mistake: true, draw: lastingALogin, inject: (*world).rotate},
	{Name: failoverAlive, loses: true, draw: lastingLeases, inject: (*world).failover},
}

const (
	passwordRotated = "password rotated"
	failoverAlive   = "failover with the old primary alive"
)

// idle is the number of connections of a pool full of them.
const idle = 40

// pool makes a fault in which all connections that a process has go bad, those of a full pool among them. Connections
// that it makes from then on work.
func pool(name string, spoil func(w *world, p *process) int) *FaultKind {
	inject := func(w *world, f Fault, met func()) {
		p := w.slot(f)
		p.fillPool()
		if spoil(w, p) > 0 { // fewer than idle right after another such fault, whose connections time out meanwhile
			met()
		}
	}
	return &FaultKind{Name: name, process: true, private: true, pool: true, draw: nothing, inject: inject}
}

// fillPool has as many idle connections made as calls at one instant leave behind.
func (p *process) fillPool() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var calls sync.WaitGroup
	for range idle {
		calls.Go(func() { p.rdb.Ping(ctx) })
		calls.Go(func() { // go-redis has other connections for pipelines
			_, _ = p.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Ping(ctx); return nil })
		})
	}
	calls.Wait()
}

// unknown makes a fault in which a proxy answers each call with an error that Redis does not know, for a while.
func unknown(name, reply string) *FaultKind {
	return &FaultKind{Name: name, unknown: true, draw: lasting, inject: func(w *world, f Fault, met func()) {
		w.server.refuse(&refusal{until: time.Now().Add(f.For), match: outside, reply: reply, met: met})
	}}
}

// lastingALogin draws how long logins are refused.
func lastingALogin(d drawer, s *Schedule, f *Fault) {
	f.For = d.between(10*time.Millisecond, d.one(time.Second, s.Lease/2, s.Lease, 2*s.Lease))
}

// shortLife is the age from which go-redis no longer uses a connection, so that it logs in often.
const shortLife = 200 * time.Millisecond

// rotate gives the server another password, which the processes learn later. Connections that exist stay logged in.
func (w *world) rotate(f Fault, met func()) {
	w.server.rotate()
	w.admin.learn()
	met()
	time.Sleep(f.For)
	for i := range w.Processes {
		w.at(i).learn()
	}
}

// lastingLeases draws a fault that lasts for some leases.
func lastingLeases(d drawer, s *Schedule, f *Fault) { f.For = d.between(2*s.Lease, 4*s.Lease) }

// health replaces the faults of a schedule by healthFaults of one family, and adds holds that are released amid them.
func (d drawer) health(s *Schedule) {
	s.Faults = nil
	families := [][]*FaultKind{healthFaults[:3], healthFaults[3:6], healthFaults[6:7]}
	if len(s.locks()) > 0 {
		families = append(families, healthFaults[7:])
	}
	kinds := families[d.IntN(len(families))]
	if kinds[0].Name == failoverAlive {
		d.failover(s, kinds[0])
		return
	}
	for range 1 + d.IntN(3) {
		kind := kinds[d.IntN(len(kinds))]
		f := Fault{At: d.between(s.Length/20, s.Length*3/4), Kind: kind.Name, Process: d.IntN(s.Processes)}
		kind.draw(d, s, &f)
		s.Faults = append(s.Faults, f)
		for _, object := range s.locks() {
			if d.IntN(2) == 0 {
				d.holdUntil(s, f, object, f.Process, d.between(0, max(f.For, 100*time.Millisecond)))
			}
		}
	}
	s.sort()
}

// holdUntil draws a hold that begins before a fault and is released so long after its beginning.
func (d drawer) holdUntil(s *Schedule, f Fault, object, process int, after time.Duration) {
	at := d.between(f.At/2, f.At)
	s.Ops = append(s.Ops, Op{
		At: at, Process: process, Object: object, Action: Take, N: 1, Hold: f.At - at + after,
	})
}

// failover draws a failover, with holders that rely on their locks and permits beyond it.
func (d drawer) failover(s *Schedule, kind *FaultKind) {
	s.Client, s.Hidden = []string{failoverClient, failoverCluster}[d.IntN(2)], d.IntN(2) == 0
	f := Fault{At: d.between(s.Length/4, s.Length*3/4), Kind: kind.Name}
	kind.draw(d, s, &f)
	s.Faults = []Fault{f}
	for _, object := range s.locks() {
		for process := range s.Processes {
			d.holdUntil(s, f, object, process, d.between(s.Lease, 3*s.Lease))
		}
	}
	s.sort()
}

// locks returns the objects that are locks or permits.
func (s *Schedule) locks() (objects []int) {
	for i, o := range s.Objects {
		if !isLimit(o.Kind) && !isTasks(o.Kind) {
			objects = append(objects, i)
		}
	}
	return objects
}

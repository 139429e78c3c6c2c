package redislock

import (
	"context"
	"slices"
	"sync"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// checkable is a *Mutex, *RWMutex, *MultiMutex or *QuorumMutex.
type checkable interface {
	Err() error
	needs() []check.Needs
}

// Check asks the servers whether the Client can work with them: whether they answer, their versions, whether
// the user may run each command, whether they take writes, whether all slots of a cluster are served, and
// which timeouts, eviction policy and persistence weaken or slow the locks. With locks, each a *Mutex,
// *RWMutex, *MultiMutex or *QuorumMutex of any Client, it looks at what these need from the servers of this
// one, their keys and channels included. Without, it looks at the commands of all kinds of locks, and not at
// keys and channels.
//
// Check needs no right that locks do not need, and says "not known" where a server refuses to tell more. It
// changes nothing but a key of its own, which ends within a second: cogwheel_check:…, with locks preceded by
// the name of the first lock and a colon. It uses connections of its own, made from the options of the
// client.
//
// The error is nil, or the one of Report.Err, which names every failure and wraps the answers of the servers.
// If ctx ends, the error matches the one of ctx too, and the Report says what was found until then; it is nil
// if calls have not returned a quarter of a second later. An argument that is refused, or a Client that is
// closed, returns an error and no Report. Check blocks for a few round trips, at most for that quarter of a
// second after the end of ctx. It is safe for concurrent use.
func (c *Client) Check(ctx context.Context, locks ...checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.wheel, argument, ErrClosed, locks, func() *cogwheel.Report {
		return check.Run(ctx, c.checked(locks))
	})
}

// checked says what is checked. It may have to ask a cluster for its kind of channels.
func (c *Client) checked(locks []checkable) *check.Client {
	c.channels.Decide()
	lease := c.defaults.lease
	var needs []check.Needs
	for _, l := range locks {
		needs = append(needs, l.needs()...)
		for _, m := range mutexes(l) {
			lease = min(lease, m.config.lease)
		}
	}
	if len(locks) == 0 {
		needs = c.allNeeds()
	}
	return &check.Client{
		Package: "redislock", Base: c.base, Needs: needs, Channel: scripts.LockChannel, Keeps: "locks", Lease: lease,
		Sharded: c.channels.Verb() == "SPUBLISH", Detects: c.channels.Detects(),
	}
}

// mutexes returns the single locks that a lock is made of.
func mutexes(l checkable) []*Mutex {
	switch l := l.(type) {
	case *Mutex:
		return []*Mutex{l}
	case *RWMutex:
		return []*Mutex{l.read, l.write}
	case *MultiMutex:
		return l.parts
	case *QuorumMutex:
		return l.parts[:1]
	}
	return nil
}

// allNeeds is what all kinds of locks need, without the keys and channels of any.
func (c *Client) allNeeds() []check.Needs {
	const name = "cogwheel_check"
	replicated := []LockOption{WithFencing(), WithReplicas(1, maxVoteTimeout)}
	var needs []check.Needs
	for _, l := range []checkable{
		c.Mutex(name, replicated...), c.FairMutex(name, replicated...), c.RWMutex(name, replicated...),
	} {
		needs = append(needs, l.needs()...)
	}
	for i := range needs {
		needs[i].Keys, needs[i].Channels = nil, nil
		needs[i].Optional = needs[i].Optional || needs[i].For == "WithReplicas"
	}
	return needs
}

// needs are read from the calls that the lock would send.
func (m *Mutex) needs() []check.Needs {
	req := m.newRequest(true)
	reserved := *req
	if m.config.fenced {
		reserved.lastReserved = 1 // gives tokens back
	}
	calls := []scripts.Call{
		m.kind.acquire(req), m.kind.release(&reserved), m.kind.force(req),
		{Script: m.kind.renew, Keys: m.kind.keysToRenew(m.name, req.id)},
	}
	if m.kind.leave != nil {
		calls = append(calls, m.kind.leave(req))
	}
	own := check.Needs{For: m.kind.name}
	for _, call := range calls {
		own.Scripts = append(own.Scripts, call.Script)
		own.Keys = append(own.Keys, call.Keys...)
	}
	state := check.Needs{
		For: "State", Optional: true, Commands: []string{"multi", "exec", "hgetall", "pttl", "get"},
		Keys: []string{m.name, scripts.LockFence(m.name)},
	}
	if m.kind == fair {
		state.Commands = append(state.Commands, "lrange")
	}
	all := []check.Needs{
		own, state, check.Listening(m.kind.channel(m.name, req.id)),
		check.Hearing(scripts.ClientChannel(m.client.ids.client)),
	}
	if m.config.replicas.n > 0 {
		all = append(all, check.Needs{For: "WithReplicas", Commands: []string{"wait"}})
	}
	return all
}

func (rw *RWMutex) needs() []check.Needs {
	downgrade := check.Needs{For: "Downgrade", Scripts: []*scripts.Script{scripts.Downgrade}}
	return slices.Concat(rw.read.needs(), rw.write.needs(), []check.Needs{downgrade})
}

func (m *MultiMutex) needs() (all []check.Needs) {
	for _, part := range m.parts {
		all = append(all, part.needs()...)
	}
	return all
}

func (m *QuorumMutex) needs() []check.Needs { return m.parts[0].needs() }

// Check asks all servers, as Client.Check does. As long as a majority of them can work, the failures of
// the others are warnings. Two servers that are one and the same are a failure.
func (q *Quorum) Check(ctx context.Context, locks ...checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &q.gate, q.wheel, argument, ErrClosed, locks, func() *cogwheel.Report {
		reports := make([]*cogwheel.Report, len(q.servers))
		var asking sync.WaitGroup
		for i, c := range q.servers {
			asking.Go(func() { reports[i] = check.Run(ctx, c.checked(locks)) })
		}
		asking.Wait()
		return check.Majority(reports)
	})
}

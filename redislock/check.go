package redislock

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Checkable is what Check can be asked about: a *Mutex, *RWMutex, *MultiMutex or *QuorumMutex.
type Checkable interface {
	Err() error
	needs() []check.Needs
}

// Check asks the servers whether the Client can work with them: whether they answer and accept writes, their
// versions, whether the user may run each command, whether all slots of a cluster are served, and which
// timeouts, eviction policy and persistence weaken or slow the locks. If locks are given, each a *Mutex,
// *RWMutex, *MultiMutex or *QuorumMutex of any Client, Check covers what they need from the servers of this
// Client, including their keys and channels. Otherwise it covers the commands of all kinds of locks, without
// keys and channels.
//
// Check needs no right that locks do not need, and says "not known", which is no failure, where a server
// refuses to tell more. It changes nothing but one key, which expires within a second: cogwheel_check:…, after
// the name of the first lock and a colon if there is one. It uses additional connections, made from the options
// of rdb.
//
// The error is nil or the error of Report.Err, which names every failure and wraps the replies of the servers.
// If ctx ends before Check is done, the error also matches the error of ctx, and the Report has the findings
// until then; the Report is nil if calls have not returned a quarter of a second later. If an argument is
// invalid or the Client is closed (ErrClosed), there is an error and no Report. Check blocks for a few round
// trips, at most until a quarter of a second after the end of ctx. It is safe for concurrent use.
func (c *Client) Check(ctx context.Context, locks ...Checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.wheel, argument, ErrClosed, locks, func() *cogwheel.Report {
		return check.Run(ctx, c.checked(locks))
	})
}

// checked returns the parameters of the check. It may have to ask a cluster for its kind of channels.
func (c *Client) checked(locks []Checkable) *check.Client {
	c.redis.Channels.Decide()
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
		Package: "redislock", Base: c.redis.Base, Needs: needs,
		Channel: scripts.LockChannel, Keeps: "locks", Lease: lease,
		Sharded: c.redis.Channels.Verb() == "SPUBLISH", Detects: c.redis.Channels.Detects(),
	}
}

// mutexes returns the single locks in a lock.
func mutexes(l Checkable) []*Mutex {
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

// allNeeds returns the needs of all kinds of locks, without keys and channels.
func (c *Client) allNeeds() []check.Needs {
	replicated := []LockOption{WithFencing(), WithReplicas(1, maxVoteTimeout)}
	var needs []check.Needs
	const name = check.Sample
	for _, l := range []Checkable{
		c.Mutex(name, append(replicated, WithMinHold(time.Second))...),
		c.Mutex(name, append(replicated, WithStringKey())...),
		c.FairMutex(name, replicated...), c.RWMutex(name, replicated...),
	} {
		needs = append(needs, l.needs()...)
	}
	for i := range needs {
		needs[i].Keys, needs[i].Channels = nil, nil
		needs[i].Optional = needs[i].Optional || needs[i].For == "WithReplicas"
	}
	return needs
}

// needs reads the needs from the calls that the lock would send.
func (m *Mutex) needs() []check.Needs {
	req := m.newRequest(true)
	reserved, kept := req.claim, req.claim
	if m.config.fenced {
		reserved.lastReserved = 1 // its release gives tokens back
	}
	if m.config.minHold > 0 {
		kept.keepUntil = math.MaxInt64
	}
	calls := []scripts.Call{
		m.kind.acquire(req), m.kind.release(&reserved), m.kind.release(&kept), m.kind.force(&req.claim),
		{Script: m.kind.renew, Keys: m.kind.keysToRenew(m.name, req.id)},
	}
	if m.kind.queuesInRedis() {
		calls = append(calls, m.kind.leave(&req.claim))
	}
	own := check.Needs{For: m.kind.name, Name: m.name}
	for _, call := range calls {
		own.Scripts = append(own.Scripts, call.Script)
		own.Keys = append(own.Keys, call.Keys...)
	}
	state := check.Needs{
		For: "State", Optional: true,
		Commands: append([]string{"multi", "exec", "pttl", "get"}, m.kind.view.commands...),
		Name:     m.name, Keys: []string{m.name, scripts.LockFence(m.name)},
	}
	all := []check.Needs{
		own, state, check.Listening(m.name, m.kind.channel(m.name, req.id)),
		check.Hearing(scripts.ClientChannel(check.Sample)),
	}
	if m.kind.lines {
		part := check.Sample
		if m.kind == reading {
			part = readers
		}
		line := scripts.SuffixName(m.name, "waiting")
		all = append(all, check.InLine(m.name, line, m.kind.channel(m.name, req.id)+":"+part))
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

func (m *QuorumMutex) needs() []check.Needs {
	part := m.parts[0]
	missing := part.newRequest(false)
	missing.regains = true
	call := part.kind.acquire(missing)
	return append(part.needs(), check.Needs{
		For: "a part that a server has lost", Optional: true,
		Scripts: []*scripts.Script{call.Script}, Name: m.name, Keys: call.Keys,
	})
}

// Check checks all servers as Client.Check does. As long as a majority of them can work, the failures of the
// others are warnings. If two clients lead to one server, that is a failure.
func (q *Quorum) Check(ctx context.Context, locks ...Checkable) (*cogwheel.Report, error) {
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

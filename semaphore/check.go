package semaphore

import (
	"context"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Checkable is what Check can be asked about: a *CountingSemaphore or *Semaphore.
type Checkable interface {
	Err() error
	needs() []check.Needs
}

// Check asks the servers whether the Client can work with them: whether they answer and accept writes, their
// versions, whether the user may run each command, whether all slots of a cluster are served, and which
// timeouts, eviction policy and persistence weaken or slow the semaphores. If semaphores are given, each a
// *CountingSemaphore or *Semaphore, Check covers what they need, including their keys and channels. Otherwise
// it covers the commands of all kinds, without keys and channels.
//
// Check needs no right that semaphores do not need, and says "not known", which is no failure, where a server
// refuses to tell more. It changes nothing but one key, which expires within a second: cogwheel_check:…, after
// the name of the first semaphore and a colon if there is one. It uses additional connections, made from the
// options of rdb.
//
// The error is nil or the error of Report.Err, which names every failure and wraps the replies of the servers.
// If ctx ends before Check is done, the error also matches the error of ctx, and the Report has the findings
// until then; the Report is nil if calls have not returned a quarter of a second later. If an argument is
// invalid or the Client is closed (ErrClosed), there is an error and no Report. Check blocks for a few round
// trips, at most until a quarter of a second after the end of ctx. It is safe for concurrent use.
func (c *Client) Check(ctx context.Context, semaphores ...Checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.wheel, argument, ErrClosed, semaphores, func() *cogwheel.Report {
		return check.Run(ctx, c.checked(semaphores))
	})
}

// checked returns the parameters of the check. It may have to ask a cluster for its kind of channels.
func (c *Client) checked(semaphores []Checkable) *check.Client {
	c.redis.Channels.Decide()
	lease := DefaultLease
	var needs []check.Needs
	for _, s := range semaphores {
		needs = append(needs, s.needs()...)
		if sem, ok := s.(*Semaphore); ok {
			lease = min(lease, sem.config.lease)
		}
	}
	if len(semaphores) == 0 {
		const name = check.Sample
		for _, s := range []Checkable{c.CountingSemaphore(name), c.Semaphore(name, 0), c.FairSemaphore(name, 0)} {
			needs = append(needs, s.needs()...)
		}
		for i := range needs {
			needs[i].Keys, needs[i].Channels = nil, nil
		}
	}
	expires := "tokens and the records of calls, by which a repeated call has no effect (permits have no expiry)"
	if c.idleMillis > 0 {
		expires = "permits"
	}
	return &check.Client{
		Package: "semaphore", Base: c.redis.Base, Needs: needs,
		Channel: scripts.SemChannel, Keeps: "permits", Expires: expires, Lease: lease,
		Sharded: c.redis.Channels.Verb() == "SPUBLISH", Detects: c.redis.Channels.Detects(),
	}
}

func (s *CountingSemaphore) needs() []check.Needs {
	c := s.client
	return []check.Needs{
		{
			For:      "CountingSemaphore",
			Scripts:  []*scripts.Script{scripts.SemAcquire, scripts.SemRelease, scripts.SemEdit, scripts.SemDelete},
			Commands: []string{"get"},
			Name:     s.name,
			Keys: []string{
				s.name, c.sequenceKey(s.name, acquiringCalls), c.sequenceKey(s.name, releasingCalls),
				c.recordKey(s.name), originKey(s.name), permitsKey(s.name, true),
			},
		},
		check.Listening(s.name, scripts.SemChannel(s.name)),
		c.needsOfLine(s.name, false),
	}
}

// needsOfLine returns the needs of waiters that are woken one after the other.
func (c *Client) needsOfLine(name string, fair bool) check.Needs {
	n := check.InLine(name, keyOf(name, fair, "waiting"), keysOf(name, fair).channel+":"+c.hearsAs())
	n.Keys = append(n.Keys, keyOf(name, fair, "kept"))
	return n
}

func (s *Semaphore) needs() []check.Needs {
	k := s.keys
	own := check.Needs{
		For: "Semaphore", Scripts: []*scripts.Script{
			scripts.PermitAcquire, scripts.PermitRelease, scripts.PermitRenew,
			scripts.PermitEdit, scripts.PermitState, scripts.PermitList, scripts.SemDelete,
		},
		Name: s.name,
		Keys: []string{k.permits, k.leases, k.fence, s.client.recordKey(s.name), permitsKey(s.name, !s.fair)},
	}
	if s.fair {
		own.For = "FairSemaphore"
	}
	return []check.Needs{own, check.Listening(s.name, k.channel), s.client.needsOfLine(s.name, s.fair)}
}

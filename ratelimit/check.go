package ratelimit

import (
	"context"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// checkable is a *Limiter, *StoredLimiter or *All.
type checkable interface {
	Err() error
	needs() []check.Needs
}

// Check asks the servers whether the Client can work with them: whether they answer, their versions,
// whether the user may run each command, whether they take writes, whether all slots of a cluster are
// served, and which timeouts, eviction policy and persistence weaken or slow the limits. With limiters,
// each a *Limiter, *StoredLimiter or *All, it looks at their commands and keys; of a Limiter, one key under
// its prefix stands for all. Without, it looks at the commands of all kinds of limiters, and not at keys.
//
// Check needs no right that limiters do not need, and says "not known", which is no failure, where a server
// refuses to tell more. It changes nothing but a key of its own, which ends within a second:
// cogwheel_check:…, after the first key of the first limiter if there is one. It uses connections of its
// own, made from the options of the client, and does not ask the policy.
//
// The error is nil, or that of Report.Err, which names every failure and wraps the answers of the servers. If
// ctx ends, it matches the error of ctx too, and the Report says what was found until then. For an argument
// that is refused, and after Close (ErrClosed), there is an error and no Report. Check blocks for a few round
// trips, at most until a quarter of a second after ctx has ended. It is safe for concurrent use.
func (c *Client) Check(ctx context.Context, limiters ...checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.wheel, argument, ErrClosed, limiters, func() *cogwheel.Report {
		return check.Run(ctx, c.checked(limiters))
	})
}

// checked says what is checked.
func (c *Client) checked(limiters []checkable) *check.Client {
	var needs []check.Needs
	for _, l := range limiters {
		needs = append(needs, l.needs()...)
	}
	if len(limiters) == 0 {
		const name = "cogwheel_check"
		limiter, stored := c.Limiter(name, PerSecond(1)), c.StoredLimiter(name)
		for _, l := range []checkable{
			limiter, c.Limiter(name, PerSecond(1), WithAlgorithm(FixedWindow)), stored,
			c.All(limiter.Part("").Cost(2)),
		} {
			needs = append(needs, l.needs()...)
		}
		for i := range needs {
			needs[i].Keys = nil
		}
	}
	return &check.Client{Package: "ratelimit", Base: c.base, Needs: needs, Keeps: "limits", Timeout: c.timeout}
}

func (k *Limiter) needs() []check.Needs {
	return []check.Needs{{
		For: "Limiter", Scripts: []*scripts.Script{k.algorithm.script()}, Commands: []string{"del"},
		Keys: []string{k.RedisKey("cogwheel_check")},
	}}
}

func (l *StoredLimiter) needs() []check.Needs {
	return []check.Needs{{
		For: "StoredLimiter", Scripts: []*scripts.Script{scripts.RateLog, scripts.RateSet},
		Commands: []string{"hgetall", "del"}, Keys: logKeys(l.name),
	}}
}

func (a *All) needs() []check.Needs {
	all := check.Needs{For: "All", Scripts: []*scripts.Script{a.algo.script()}, Keys: []string{a.state.key}}
	if c, several := a.algo.(*combination); several {
		all.Keys = c.keys
	}
	return []check.Needs{all}
}

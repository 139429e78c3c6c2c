package ratelimit

import (
	"context"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// Checkable is what Check can be asked about: a *Limiter, *StoredLimiter or *All.
type Checkable interface {
	Err() error
	needs() []check.Needs
}

// Check asks the servers whether the Client can work with them: whether they answer and accept writes, their
// versions, whether the user may run each command, whether all slots of a cluster are served, and which
// timeouts, eviction policy and persistence weaken or slow the limits. If limiters are given, each a *Limiter,
// *StoredLimiter or *All, Check covers their commands and keys; for a Limiter, one key under its prefix stands
// for all. Otherwise it covers the commands of all kinds of limiters, without keys.
//
// Check needs no right that limiters do not need, and says "not known", which is no failure, where a server
// refuses to tell more. It changes nothing but one key, which expires within a second: cogwheel_check:…, after
// the first key of the first limiter if there is one. It uses additional connections, made from the options of
// rdb, and does not ask the policy.
//
// The error is nil or the error of Report.Err, which names every failure and wraps the replies of the servers.
// If ctx ends before Check is done, the error also matches the error of ctx, and the Report has the findings
// until then; the Report is nil if calls have not returned a quarter of a second later. If an argument is
// invalid or the Client is closed (ErrClosed), there is an error and no Report. Check blocks for a few round
// trips, at most until a quarter of a second after the end of ctx. It is safe for concurrent use.
func (c *Client) Check(ctx context.Context, limiters ...Checkable) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.core.Wheel, argument, ErrClosed, limiters, func() *cogwheel.Report {
		return check.Run(ctx, c.checked(limiters))
	})
}

// checked returns the parameters of the check.
func (c *Client) checked(limiters []Checkable) *check.Client {
	var needs []check.Needs
	for _, l := range limiters {
		needs = append(needs, l.needs()...)
	}
	if len(limiters) == 0 {
		const name = check.Sample
		kinds := []Checkable{c.StoredLimiter(name), c.All(c.Limiter(name, PerSecond(1)).Part("").Cost(2))}
		for algorithm := range algo.Kinds {
			kinds = append(kinds, c.Limiter(name, PerSecond(1), WithAlgorithm(Algorithm(algorithm))))
		}
		for _, l := range kinds {
			needs = append(needs, l.needs()...)
		}
		for i := range needs {
			needs[i].Keys = nil
		}
	}
	return &check.Client{Package: "ratelimit", Base: c.base, Needs: needs, Keeps: "limits", Timeout: c.core.Timeout}
}

func (k *Limiter) needs() []check.Needs {
	return []check.Needs{{
		For: "Limiter", Scripts: []*scripts.Script{k.algorithm.Script()}, Commands: []string{"del"},
		Keys: []string{k.RedisKey(check.Sample)},
	}}
}

func (l *StoredLimiter) needs() []check.Needs {
	return []check.Needs{{
		For: "StoredLimiter", Scripts: []*scripts.Script{scripts.RateLog, scripts.RateSet},
		Commands: []string{"hgetall", "del"}, Name: l.name, Keys: algo.LogKeys(l.name),
	}}
}

func (a *All) needs() []check.Needs {
	return []check.Needs{{For: "All", Scripts: []*scripts.Script{a.algo.Script()}, Keys: a.parts.Keys}}
}

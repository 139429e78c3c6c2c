package statusz

import (
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

type limitStatus struct {
	Name     string        `json:"name"`
	Allowed  int64         `json:"allowed"`
	Denied   int64         `json:"denied"` // without Shadow
	Shadow   int64         `json:"shadow_denied"`
	Failed   int64         `json:"failed"`
	Local    int64         `json:"local"`
	Degraded int64         `json:"degraded"`
	Scripts  int64         `json:"scripts"`
	Failures int64         `json:"call_failures"`
	Waiting  int           `json:"waiting"`
	Keys     int           `json:"keys"`
	Breaker  breakerStatus `json:"breaker"`
	Wait     latency       `json:"wait"`
	Took     latency       `json:"took"`
}

type breakerStatus struct {
	Open     bool     `json:"open"`
	Node     string   `json:"node,omitempty"`
	OpenFor  *seconds `json:"open_seconds"`
	Failures int      `json:"failures_in_a_row"`
	Err      string   `json:"last_error,omitempty"`
}

// LimitClient is a *ratelimit.Client.
type LimitClient interface {
	Stats() ratelimit.Stats
	Breaker() ratelimit.Breaker
}

// Limits shows the decisions of the limiters of a client, and its breaker, under a name. It panics if c is nil.
func Limits(name string, c LimitClient) Source {
	return newSource(c.Stats, func(p *page, _ int) { p.Limits = append(p.Limits, newLimitStatus(name, c, p.Time)) })
}

func newLimitStatus(name string, c LimitClient, now time.Time) limitStatus {
	s, b := c.Stats(), c.Breaker()
	status := limitStatus{
		Name: name, Allowed: s.Allowed, Denied: s.Denied - s.ShadowDenied, Shadow: s.ShadowDenied,
		Failed: s.Failed, Local: s.Local, Degraded: s.Degraded,
		Scripts: s.Scripts, Failures: s.Failures, Waiting: s.Waiting, Keys: s.Keys,
		Breaker: breakerStatus{Open: b.Down, Node: b.Node, Failures: b.Failures},
		Wait:    newLatency(s.Wait), Took: newLatency(s.Took),
	}
	if b.Down {
		openFor := seconds(now.Sub(b.Since))
		status.Breaker.OpenFor = &openFor
	}
	if b.Err != nil {
		status.Breaker.Err = shown(b.Err.Error(), maxError)
	}
	return status
}

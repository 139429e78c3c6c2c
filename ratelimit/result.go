package ratelimit

import (
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// Source tells who made a decision.
type Source uint8

const (
	// SourceRedis is a decision of Redis.
	SourceRedis Source = iota
	// SourceLocal is a decision of this process: a denial, by an earlier answer of Redis that still holds,
	// because callers of this process wait, or because the limit is 0; or a grant of permits that were charged for
	// waiters who have left.
	SourceLocal
	// SourceDegraded is a decision of the policy while Redis is down; see WithPolicy.
	SourceDegraded
)

// String returns "redis", "local", "degraded", or "unknown".
func (s Source) String() string {
	switch s {
	case SourceRedis:
		return "redis"
	case SourceLocal:
		return "local"
	case SourceDegraded:
		return "degraded"
	}
	return "unknown"
}

// Result is one decision. If a call returns an error, the caller has no permits, though some may have been taken, and
// only the Source of its Result is valid. Unless the Source is SourceRedis, Limit, Remaining and ResetAfter may be 0
// for unknown; under LocalShare they describe the share.
//
// Under WithShadow, Allowed is true and Granted is the whole request. If WouldDeny is true, the other fields are those
// of the denial, or 0 if the decision failed with an error.
type Result struct {
	Allowed   bool
	Shadow    bool  // a decision under WithShadow: show its counts to no client
	WouldDeny bool  // the limit refused the request or, for AllowUpTo, a part of it, but WithShadow let it pass
	Granted   int64 // permits taken: all of the request, or 0; AllowUpTo may take a part
	Limit     int64 // permits that can be used at once
	Remaining int64 // permits that can be used right after the decision
	// RetryAfter is the time until the same request can be granted, if no other caller takes the permits first;
	// 0 if it was granted, and Never if the limit is 0. With SlidingWindow it may be too short after a debt of
	// Reservation.Settle. A time above 100 years, but for Never, is given as 100 years.
	RetryAfter time.Duration
	// ResetAfter is the time until the limiter is unused again, if no other request comes, 100 years at most.
	ResetAfter time.Duration
	Source     Source
	// Parts has, for Client.All, the decision of each part, in order. The parts that are not Allowed denied the
	// request; those that have WouldDeny would have. It is nil for other calls.
	Parts []Result
	// Name and Key identify a part in Parts: the prefix of its Limiter, and its key as given. They are empty elsewhere.
	Name, Key string
	// Reservation settles the permits that TryReserve has taken, when their cost is known. It is nil for a denial, for
	// a decision of the policy, and for other calls.
	Reservation *Reservation

	grant []string // entries of the log, for Return
}

// resultOf returns a decision as a Result.
func resultOf(d *algo.Decision) (r Result) {
	r.set(d)
	return r
}

// result returns the decision of a call as its Result.
func result(d algo.Decision, err error) (Result, error) { return resultOf(&d), err }

// set sets an empty Result to a decision.
func (r *Result) set(d *algo.Decision) {
	r.Allowed, r.Granted, r.Limit, r.Remaining = d.Allowed, d.Granted, d.Limit, d.Remaining
	r.RetryAfter, r.ResetAfter, r.Source = d.RetryAfter, d.ResetAfter, Source(d.Source)
	for i := range d.Parts {
		r.Parts = append(r.Parts, resultOf(&d.Parts[i]))
	}
	if d.Entry != "" {
		r.grant = []string{d.Entry}
	}
}

package ratelimit

import "time"

// Source says where a decision was made.
type Source uint8

const (
	// SourceRedis is a decision of Redis.
	SourceRedis Source = iota
	// SourceLocal is a decision of this process: a denial, from an earlier answer of Redis that still holds,
	// or a grant of permits that were charged for waiters who have left.
	SourceLocal
	// SourceDegraded is a decision by the policy for when Redis is down; see WithPolicy.
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

// Result is one decision. A call that returns an error has granted nothing, and only the Source of its Result
// counts. Limit, Remaining and ResetAfter may be 0 for unknown unless the Source is SourceRedis; under
// LocalShare they are those of the share.
type Result struct {
	Allowed   bool
	Granted   int64 // permits charged: all that were asked for, or 0; AllowUpTo may grant a part
	Limit     int64 // permits that can be used at once
	Remaining int64 // permits that could be used right after the decision
	// RetryAfter is how long to wait before the same request can be granted, if no other caller takes the
	// permits first; 0 if it was granted.
	RetryAfter time.Duration
	// ResetAfter is how long until the limiter is as good as new, if it is not used meanwhile.
	ResetAfter time.Duration
	Source     Source
	// Parts has, for Client.All, the decision of each limit, in their order: those that are not Allowed
	// denied the request. It is nil for other calls.
	Parts []Result

	grant []string // entries of the log, for Return
}

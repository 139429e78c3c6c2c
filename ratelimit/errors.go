package ratelimit

import (
	"fmt"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// Errors that callers can tell apart with errors.Is. They name the operation and the key. Errors of contexts
// and of Redis are wrapped. A denial is no error of Allow: see Result.Allowed.
var (
	// ErrNotSet is returned by a StoredLimiter whose limit is not set in Redis, was deleted, or has expired by
	// WithKeepAlive.
	ErrNotSet = keys.ErrNotSet

	// ErrExceedsLimit is returned for a request that could never be granted. No permits were taken.
	ErrExceedsLimit = keys.ErrExceedsLimit

	// ErrWouldExceedDeadline is returned for a wait or a reservation whose permits cannot come before the
	// deadline of its context. Reserve also returns it without a deadline: for permits more than a minute ahead, and
	// with FixedWindow and SlidingWindow for any that are not available now. No permits were taken. It does not match
	// context.DeadlineExceeded.
	ErrWouldExceedDeadline = keys.ErrWouldExceedDeadline

	// ErrUnavailable is returned if Redis did not answer, or answered that it cannot serve now, and the policy
	// does not decide: it is FailClosed, or LocalShare does not know the limit, or the method has no policy. If
	// Redis was asked, the permits may have been taken. The error wraps the cause: the error of the call or of
	// its context, or, while Redis is not asked, the error of the last call.
	ErrUnavailable = keys.ErrUnavailable

	// ErrMisconfigured is returned if Redis refuses this client: its user lacks a right, its password is wrong,
	// its certificate does not verify, or rdb was closed. That is not an outage: the policy does not decide,
	// and waits end. Waits that Redis has answered before endure a refused login for 30 s, in which a password may be
	// rotated. The error wraps the answer of Redis. docs/ratelimit.md has the table.
	ErrMisconfigured = keys.ErrMisconfigured

	// ErrWrongKind is returned if a key in Redis holds something other than a limiter. The call did not change
	// the key.
	ErrWrongKind = keys.ErrWrongKind

	// ErrClosed is returned after Client.Close, and to calls that wait then.
	ErrClosed = keys.ErrClosed
)

const argument = conventions.Package("ratelimit")

// DebtError is the error of a Settle that used more permits than the limit lets a caller owe. For an All, Booked and
// Dropped are those of the first part with Dropped permits.
type DebtError struct {
	Booked  int64 // permits of the debt that were charged
	Dropped int64 // permits that were not
	// Parts has, for an All, the debt of each part, in order. A part whose debt was charged in full has Dropped 0.
	Parts []PartDebt
}

// PartDebt is the debt of a part of an All.
type PartDebt struct {
	Name, Key string // of the part: prefix of its Limiter, and key as given
	Booked    int64  // permits of the debt that were charged
	Dropped   int64  // permits that were not
}

// Error implements error.
func (e *DebtError) Error() string {
	var texts []string
	for _, p := range e.Parts {
		if p.Dropped > 0 {
			texts = append(texts, debtText(" of "+scripts.Quote(p.Name), p.Booked, p.Dropped))
		}
	}
	if texts == nil {
		return debtText("", e.Booked, e.Dropped)
	}
	return strings.Join(texts, "; ")
}

func debtText(of string, booked, dropped int64) string {
	return fmt.Sprintf("a debt of %d permits%s is above the bound, %d were charged", booked+dropped, of, booked)
}

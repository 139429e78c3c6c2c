package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// Bounds of a Limit.
const (
	MaxRate = math.MaxUint32            // permits in a period; also the maximum of an entry in Redisson's log
	MaxPer  = 10 * 365 * 24 * time.Hour // longest period
)

// Never is Result.RetryAfter for a limit of 0 permits.
const Never time.Duration = math.MaxInt64

// Limit is a rate: Rate permits in each Per, of which up to Burst may be used at once. Make it with PerSecond,
// PerMinute, PerHour, PerDay or Per, or as a literal. The whole burst must refill within 100 years. A Limit is
// a comparable value. These functions, Limiter.Limit and Config set Burst, so a literal with Burst 0 is not equal to
// their Limits.
//
// A Limiter with a Rate of 0, such as PerDay(0), denies every request for a permit, for example those of a blocked
// tenant: without asking Redis or a policy, with RetryAfter Never, and counted as any denial. Wait and Reserve fail
// with ErrExceedsLimit. The zero Limit is invalid, so that a row missing in a table neither blocks nor admits silently.
type Limit struct {
	Rate  int64         // permits in each Per, 1 to MaxRate; for a Limiter also 0
	Per   time.Duration // 1 µs to MaxPer; whole milliseconds, except with GCRA
	Burst int64         // usable at once, 1 to MaxRate; 0 stands for Rate; 0 or Rate, except with GCRA
}

// PerSecond is Per(n, time.Second): n permits a second with a burst of n.
func PerSecond(n int64) Limit { return Limit{n, time.Second, n} }

// PerMinute is Per(n, time.Minute): n permits a minute with a burst of n.
func PerMinute(n int64) Limit { return Limit{n, time.Minute, n} }

// PerHour is Per(n, time.Hour): n permits an hour with a burst of n.
func PerHour(n int64) Limit { return Limit{n, time.Hour, n} }

// PerDay is Per(n, 24*time.Hour): n permits in 24 hours with a burst of n. A Limiter can grant up to 2n within 24
// hours; see Per.
func PerDay(n int64) Limit { return Limit{n, 24 * time.Hour, n} }

// Per returns a limit of n permits every d with a burst of n. Within a time of d a Limiter can grant up to 2n: a whole
// burst, and the permits that refill meanwhile. With GCRA, WithBurst(b) makes that b + n. A StoredLimiter grants at
// most n.
func Per(n int64, d time.Duration) Limit { return Limit{n, d, n} }

// WithBurst returns the limit with another burst.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// whole returns the limit with Rate as its burst if it has none.
func (l Limit) whole() Limit {
	if l.Burst == 0 {
		l.Burst = l.Rate
	}
	return l
}

// String returns the limit in a form like "10 per 1s, burst 20".
func (l Limit) String() string {
	return fmt.Sprintf("%d per %v, burst %d", l.Rate, l.Per, l.whole().Burst)
}

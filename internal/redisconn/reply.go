package redisconn

import (
	"errors"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Reply is the outcome of the last try of a call, which may have been sent several times.
type Reply struct {
	*redis.Cmd
	SentAt time.Time // before the last try was sent, so before it executed

	// Ambiguous is true if a copy of the call may have executed, wholly or in part, or may execute yet: the copy was
	// sent and not answered, or its script was interrupted. A reply that no script returns is no answer.
	Ambiguous bool

	// Followed is true if the next call of this one was executed after it and answered. Apply of that call comes first.
	Followed bool
}

// Integers is scripts.Integers.
func (r *Reply) Integers(counts ...int) ([]int64, error) {
	v, err := scripts.Integers(r.Cmd, counts...)
	return v, r.Understood(err)
}

// Flags is scripts.Flags.
func (r *Reply) Flags(n int) ([]bool, error) {
	v, err := scripts.Flags(r.Cmd, n)
	return v, r.Understood(err)
}

// Flag is scripts.Flag.
func (r *Reply) Flag() (bool, error) {
	v, err := scripts.Flag(r.Cmd)
	return v, r.Understood(err)
}

// Integer is scripts.Integer.
func (r *Reply) Integer() (int64, error) {
	v, err := scripts.Integer(r.Cmd)
	return v, r.Understood(err)
}

// Unexpected returns the error of a reply that no script returns.
func (r *Reply) Unexpected() error { return r.Understood(scripts.Unexpected(r.Val())) }

// Understood returns err, the error of reading the reply. If the reply was one that no script returns, it sets
// Ambiguous.
func (r *Reply) Understood(err error) error {
	r.Ambiguous = r.Ambiguous || errors.Is(err, scripts.ErrReply)
	return err
}

// Duration returns a number of milliseconds of Redis as a Duration, at most the longest one. Numbers below 0, which
// stand for never, become -1 ms.
func Duration(millis int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(millis, -1), most)) * time.Millisecond
}

// Millis returns d in milliseconds, rounded up: the server must not end a lease before its holder expects it.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

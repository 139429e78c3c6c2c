package redisconn

import (
	"errors"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Reply is the outcome of a call that may have been sent several times: that of the last try.
type Reply struct {
	*redis.Cmd
	SentAt time.Time // before the last try was sent; what it did on the server was not done earlier

	// Ambiguous says that a copy of the call may have executed, wholly or in part, or may execute yet: it was sent
	// and not answered, or its script was interrupted. A reply that no script returns is no answer.
	Ambiguous bool
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

// Understood returns the error of reading the reply, and notes whether the reply was no answer.
func (r *Reply) Understood(err error) error {
	r.Ambiguous = r.Ambiguous || errors.Is(err, scripts.ErrReply)
	return err
}

// Duration returns the time of that many milliseconds, or the greatest Duration: Redis has longer times. Less than
// 0 stands for never.
func Duration(millis int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(millis, -1), most)) * time.Millisecond
}

// Millis rounds up: the server must not end a lease before its holder expects it.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

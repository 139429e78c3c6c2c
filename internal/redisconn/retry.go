package redisconn

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Reply is the outcome of Retry: that of the last attempt.
type Reply struct {
	*redis.Cmd
	SentAt time.Time // before the last attempt was sent; what it did on the server was not done earlier

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

// migrationTimeout bounds for how long a call waits for a slot of a cluster that migrates to another node. It
// takes milliseconds as a rule, and for ever if its operator forgets it half-way.
const migrationTimeout = 5 * time.Second

// Retry sends a call that is idempotent by once, which also returns an instant before it was sent, and up to
// retries times more while a second try may succeed; while the keys of the call are in a slot that migrates,
// for as long as migrationTimeout. It sends nothing more when ended is closed. It pauses on the wheel, and
// blocks until an answer or the last failure; once bounds each attempt.
func Retry(
	w *wheel.Wheel, rdb redis.UniversalClient, retries int, ended <-chan struct{}, once func() (*redis.Cmd, time.Time),
) (r Reply) {
	var began time.Time
	for n := 0; ; n++ {
		r.Cmd, r.SentAt = once()
		err := r.Err()
		if err == nil {
			return r
		}
		ambiguous := MayHaveExecuted(err)
		r.Ambiguous = r.Ambiguous || ambiguous
		most := 512 * time.Millisecond
		if Migrating(err) {
			most = 64 * time.Millisecond
			if began.IsZero() {
				began = r.SentAt
			} else if w.Now().Sub(began) > migrationTimeout {
				return r
			}
		} else if n >= retries || !ambiguous && !Transient(err) {
			return r
		}
		Reload(rdb)
		longest := min(8*time.Millisecond<<min(n, 6), most)
		if !pause(w, longest/2+rand.N(longest/2), ended) {
			return r
		}
	}
}

// pause reports whether d has passed before ended was closed. It returns false, too, if w is stopped or full.
func pause(w *wheel.Wheel, d time.Duration, ended <-chan struct{}) bool {
	passed := make(chan error, 1)
	timer, err := wheelentry.AfterFunc(w, d, func(stopped error) { passed <- stopped })
	if err != nil {
		return false
	}
	select {
	case stopped := <-passed:
		return stopped == nil
	case <-ended:
		timer.Stop()
		return false
	}
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

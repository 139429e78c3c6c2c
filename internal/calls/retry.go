package calls

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Reply is the outcome of Retry: that of the last attempt.
type Reply struct {
	*redis.Cmd
	SentAt time.Time // before the last attempt was sent; what it did on the server was not done earlier
	Doubt  bool      // a copy of the call was sent and not answered: it may have executed, or may yet
}

// Retry sends a call that is idempotent by once, which also returns an instant before it was sent, and up to retries times more
// while a second try may succeed. It pauses on the wheel, and blocks until an answer or the last failure; once bounds each attempt.
func Retry(w *wheel.Wheel, rdb redis.UniversalClient, retries int, once func() (*redis.Cmd, time.Time)) (r Reply) {
	for n := 0; ; n++ {
		r.Cmd, r.SentAt = once()
		err := r.Err()
		if err == nil {
			return r
		}
		unanswered := MayHaveBeenSent(err)
		r.Doubt = r.Doubt || unanswered
		if n >= retries || !unanswered && !Passing(err) {
			return r
		}
		Reload(rdb)
		pause := 8 * time.Millisecond << min(n, 6)
		if w.Sleep(context.Background(), pause/2+rand.N(pause/2)) != nil {
			return r
		}
	}
}

// Millis rounds up: the server must not end a lease before its holder expects it.
func Millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

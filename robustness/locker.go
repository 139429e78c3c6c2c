package robustness

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Ask is what a caller asks of an object.
type Ask struct {
	Object string
	N      int64 // permits
	Shared bool  // a reader
	Try    bool  // does not wait

	Owner *redislock.Owner // of a re-entrant kind
}

// Locker is an implementation under test: locks or permits of one library over one connection to Redis.
type Locker interface {
	// Acquire returns an error that matches ErrRefused if the object is held by others.
	Acquire(ctx context.Context, ask Ask) (Hold, error)

	// Close ends all waits and holds.
	Close(ctx context.Context) error
}

// ErrRefused is the answer to a call that does not wait, or whose context ended while it waited.
var ErrRefused = errors.New("held by others")

// Hold is what a Locker acquired.
type Hold interface {
	Valid() bool                                       // whether the client may rely on it
	Told() <-chan struct{}                             // is closed when it is lost; nil if the library tells nothing
	Token() int64                                      // 0 without fencing
	Release(ctx context.Context) (history.Step, error) // Released, Lost or Open
}

// Settings are those of a Locker.
type Settings struct {
	Lease time.Duration
	Poll  time.Duration // of waiters, where the library has one
	Pause time.Duration // of waiters of simple locks; 0 for 10 ms
	Tick  time.Duration // of the wheel

	Retries int           // of go-redis; 0 is a random number for each client
	Skew    time.Duration // of the clocks of every second process
}

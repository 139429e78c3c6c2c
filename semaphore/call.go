package semaphore

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// verb stands, among the arguments of a script, for the command that wakes waiters.
type verb struct{}

var publish verb

// retriesOf is how often the client is meant to retry a call.
func retriesOf(rdb redis.UniversalClient) int {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().MaxRetries
	case *redis.Ring:
		return c.Options().MaxRetries
	default: // a cluster client counts redirections instead
		return 3
	}
}

// dedicated returns a client with a few connections of its own to the same servers, which neither repeats calls nor
// outlasts their deadlines, and a function that closes it. A client of another type is shared.
func dedicated(rdb redis.UniversalClient) (redis.UniversalClient, func() error) {
	const poolSize = 4 // as many renewals as are in flight at a time
	switch c := rdb.(type) {
	case *redis.Client:
		opt := *c.WithTimeout(c.Options().ReadTimeout).Options()
		opt.ContextTimeoutEnabled, opt.MaxRetries = true, -1
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		opt.ClientSideCacheConfig = nil
		opt.PushNotificationProcessor = nil // the clone's is registered with the caller's client
		own := redis.NewClient(&opt)
		return own, own.Close
	case *redis.ClusterClient:
		opt := *c.Options()
		opt.ContextTimeoutEnabled = true
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		own := redis.NewClusterClient(&opt)
		return own, own.Close
	case *redis.Ring:
		opt := *c.Options()
		opt.ContextTimeoutEnabled, opt.MaxRetries = true, -1
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		own := redis.NewRing(&opt)
		return own, own.Close
	default:
		return rdb, func() error { return nil }
	}
}

// reply is the outcome of run.
type reply struct {
	*redis.Cmd
	sentAt time.Time // before the last attempt was sent; what it did on the server was not done earlier
	doubt  bool      // a copy of the call was sent and not answered: it may have executed, or may yet
}

// run executes a script that is idempotent, and retries what may succeed on a second try as often as the client's options
// say. It blocks until an answer or the last failure, each attempt within the client's own timeouts.
func (c *Client) run(s *scripts.Script, keys []string, args ...any) (r reply) {
	if at := slices.Index(args, any(publish)); at >= 0 {
		args[at] = c.channels.Verb()
	}
	for n := 0; ; n++ {
		r.sentAt = time.Now()
		r.Cmd = s.RunOnce(context.Background(), c.rdb, keys, args...)
		err := r.Err()
		if err == nil {
			return r
		}
		unanswered := mayHaveBeenSent(err)
		r.doubt = r.doubt || unanswered
		if !refused(err) {
			reload(c.rdb)
		}
		if n >= c.retries || !unanswered && !passing(err) {
			return r
		}
		pause := min(8*time.Millisecond<<n, 512*time.Millisecond)
		if c.wheel.Sleep(context.Background(), pause/2+rand.N(pause/2)) != nil {
			return r
		}
	}
}

// reload has a cluster client look at the cluster's state: on its own it may dial a dead master for a minute.
func reload(rdb redis.UniversalClient) {
	if cluster, ok := rdb.(interface{ ReloadState(context.Context) }); ok {
		cluster.ReloadState(context.Background())
	}
}

// mayHaveBeenSent reports whether a failed call may have reached the server all the same.
func mayHaveBeenSent(err error) bool {
	var op *net.OpError
	switch {
	case refused(err):
		return false
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &op) && op.Op == "dial":
		return false
	}
	return true
}

// refused reports whether the error is an answer of the server.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// passing reports whether the server refused a call for a reason that tends to pass within a second, such as a failover.
func passing(err error) bool {
	_, moved := redis.IsMovedError(err)
	return moved || redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) ||
		redis.IsClusterDownError(err) || redis.IsTryAgainError(err) || redis.IsMaxClientsError(err)
}

// final reports whether a call that failed is not worth repeating, ever.
func final(err error) bool { return refused(err) && !passing(err) }

// call runs a script for one caller, who is let go when ctx ends.
func (c *Client) call(ctx context.Context, operation, name string, s *scripts.Script, keys []string, args ...any) (reply, error) {
	return c.await(ctx, operation, name, func() reply { return c.run(s, keys, args...) })
}

// await runs f on a goroutine of its own, which its own timeouts end, until ctx ends. It checks what every call checks.
func (c *Client) await(ctx context.Context, operation, name string, f func() reply) (reply, error) {
	if err := c.begin(ctx, operation, name); err != nil {
		return reply{}, err
	}
	result := make(chan reply, 1)
	go func() {
		defer c.gate.leave()
		result <- f()
	}()
	select {
	case r := <-result:
		if err := r.Err(); err != nil {
			return r, operationError(operation, name, err)
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, operationError(operation, name, ended(ctx))
	}
}

// begin checks the context and enters the gate.
func (c *Client) begin(ctx context.Context, operation, name string) error {
	switch {
	case ctx == nil:
		return &InvalidError{Field: "context", Value: "nil", Reason: "must not be nil"}
	case ctx.Err() != nil:
		return operationError(operation, name, ended(ctx))
	case !c.gate.enter():
		return ErrClosed
	}
	return nil
}

// ended is why ctx is over.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// millis rounds up: the server must not end a lease before its holder expects it.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Question is a command that changes nothing, and that a server refuses while it refuses writes. It is sent once.
type Question func(ctx context.Context, c scripts.Client) error

// WriteQuestion returns a Question about a key of any type.
func WriteQuestion(key string) Question {
	return func(ctx context.Context, c scripts.Client) error {
		return c.Process(ctx, scripts.Once(redis.NewCmd(ctx, "zrem", key, "")))
	}
}

// OfConnection reports whether a call failed for a reason that may be one of its connection alone: the connection was
// closed or is silent, or leads to a server that was demoted. A new connection may lead to a server that is well.
func OfConnection(err error) bool {
	if Refused(err) {
		return classify(err) == Unavailable && redis.IsReadOnlyError(err) && !scripts.Interrupted(err)
	}
	return classify(err) == Unavailable && MayHaveExecuted(err)
}

// leastForIdle is the least time that Refresh gives idle connections.
const leastForIdle = 100 * time.Millisecond

// Refresh finds out whether the node of a client is well although calls have failed, and if so, rids the client of the
// idle connections that are not. cause is the last failure. If it is an answer of the server, Refresh asks as any call
// does. If it is one of a connection, it asks over a new connection. If the server answers within limit, Refresh asks
// over every idle connection, for as long as the new one took, and go-redis closes those that fail. Then it asks as any
// call does, for limit at most. Refresh returns nil if that question was answered, whatever the answer, unless the
// server cannot serve now or refuses the password.
func Refresh(
	ctx context.Context, w *wheel.Wheel, c *redis.Client, limit time.Duration, cause error, ask Question,
) error {
	within := func(d time.Duration, f func(context.Context, *redis.Client) error) error {
		ctx, cancel := w.WithTimeout(ctx, d)
		defer cancel()
		return f(ctx, c.WithTimeout(d)) // which shares the connections, without the hooks
	}
	if timeout, _ := ReadTimeout(c); timeout > 0 {
		limit = min(limit, timeout)
	}
	asCalls := func(ctx context.Context, c *redis.Client) error { return Answer(ask(ctx, c)) }
	if !OfConnection(cause) {
		if err := within(limit, asCalls); !OfConnection(err) {
			return err
		}
	}
	began := w.Now()
	fresh := func(ctx context.Context, c *redis.Client) error { return askFresh(ctx, c, ask) }
	if err := within(limit, fresh); err != nil {
		return err
	}
	took := min(max(w.Now().Sub(began), leastForIdle), limit)
	_ = within(took, func(ctx context.Context, c *redis.Client) error { askIdle(ctx, c, ask); return nil })
	return within(limit, asCalls)
}

// askFresh asks over a connection of its own. A server with a password closes the connections of clients that send
// large commands before the password: that is no outage, so a PING on another connection decides.
func askFresh(ctx context.Context, c *redis.Client, ask Question) error {
	opt := OwnOptions(c, 8) // after as many dials that failed, go-redis would dial in the background
	opt.DialerRetries = 1
	own := redis.NewClient(&opt)
	defer func() { _ = own.Close() }()
	err := Answer(ask(ctx, own))
	if err != nil && ctx.Err() == nil && !Refused(err) && OfConnection(err) {
		if refused := own.Ping(ctx).Err(); IsLoginRefused(refused) {
			return refused
		}
	}
	return err
}

// askIdle asks over each idle connection of a client. It holds them all until each has been asked: the connection that
// was used last would be the next again.
func askIdle(ctx context.Context, c *redis.Client, ask Question) {
	stats := c.PoolStats()
	idle := int(stats.IdleConns)
	var asked, over sync.WaitGroup
	asked.Add(idle)
	for range idle {
		over.Go(func() {
			conn := c.Conn()
			defer func() { _ = conn.Close() }()
			askSafely(ctx, conn, ask)
			asked.Done()
			asked.Wait()
		})
	}
	if stats.PipelineStats != nil {
		for range stats.PipelineStats.IdleConns {
			over.Go(func() { askSafely(ctx, inPipeline{c}, ask) })
		}
	}
	over.Wait()
}

// askSafely asks apart: a hook of the redis client may fail.
func askSafely(ctx context.Context, c scripts.Client, ask Question) {
	usercode.Apart(func() { _ = ask(ctx, c) }, func(*usercode.Failure) {})
}

// inPipeline is a client that sends each command in a pipeline, for which go-redis has separate connections.
type inPipeline struct{ *redis.Client }

func (p inPipeline) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := p.Pipeline()
	_ = pipe.Process(ctx, cmd)
	_, err := pipe.Exec(ctx)
	return err
}

// Answer returns nil for a server that can serve now, even if it has refused the question.
func Answer(err error) error {
	redirected := redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
	if err != nil && Refused(err) && !IsLoginRefused(err) && (!IsUnavailable(err) || Migrating(err) || redirected) {
		return nil
	}
	return err
}

// IsMisconfigured reports whether a call failed because client and server do not match; see [Misconfigured].
func IsMisconfigured(err error) bool { return classify(err) == Misconfigured }

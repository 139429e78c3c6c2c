package redislock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// askReplicated asks for the lock and then, on the same connection, for the confirmation of replicas.
func (a *acquisition) askReplicated(ctx context.Context) *redis.Cmd {
	c, want := a.mutex.client(), a.mutex.config.replicas
	what := a.request.kind().acquire(a.request)
	node, err := redisconn.Node(c.redis.Base, a.mutex.name)
	if errors.Is(err, redisconn.ErrNodes) {
		err = argument.Error("WithReplicas", fmt.Sprintf("%T", c.redis.Client), "needs a client whose nodes are known")
	}
	if err != nil {
		return calls.Failed(err)
	}
	conn := node.Conn()
	defer conn.Close()
	cmd := what.Script.RunOnce(ctx, conn, what.Keys, what.Args...)
	if g, err := readGrant(&redisconn.Reply{Cmd: cmd}, a.request.wantsToken()); err == nil && g.taken {
		got, err := conn.Wait(ctx, want.n, want.timeout).Result()
		switch {
		case err != nil:
			a.missing = fmt.Errorf("%w: %w", ErrReplicas, err)
		case got < int64(want.n):
			a.missing = fmt.Errorf("%w: %d of %d within %v", ErrReplicas, got, want.n, want.timeout)
		default:
			a.missing = nil
		}
	}
	return cmd
}

// ask sends the request of a call that does not queue. If ctx ends first, answered is false, and a late grant
// is released in the background.
func (a *acquisition) ask(ctx context.Context) (h *held, answered bool, err error) {
	for {
		r, answered := a.mutex.client().redis.Sender.Do(ctx, a.call(func(r redisconn.Reply) {
			if h, err := a.result(&r); err == nil {
				h.discard()
			}
		}))
		if !answered {
			return nil, false, nil
		}
		if h, err = a.result(&r); !errors.Is(err, errTooSlow) {
			return h, true, err
		}
	}
}

// askFor is ask without blocking. It calls done with the outcome, on another goroutine. done must not block.
func (a *acquisition) askFor(done func(*held, error)) {
	a.mutex.client().redis.Sender.Go(a.ctx, a.call(func(r redisconn.Reply) {
		h, err := a.result(&r)
		if errors.Is(err, errTooSlow) {
			a.askFor(done)
			return
		}
		done(h, err)
	}))
}

func (a *acquisition) call(late func(redisconn.Reply)) calls.Request {
	r := calls.Request{
		Key: a.mutex.name, Late: late,
		Build: func() scripts.Call { return a.request.kind().acquire(a.request) },
	}
	if a.mutex.config.replicas.n > 0 {
		r.Send = a.askReplicated
	}
	return r
}

package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/sender"
)

// runReplicated asks for a lock and then, on the same connection, whether replicas have it too.
func (c *Client) runReplicated(req *request, want replicas, ended <-chan struct{}) (r redisconn.Reply, missing error) {
	what := req.kind().acquire(req)
	r = c.sender.Retry(ended, func() (*redis.Cmd, time.Time) {
		ctx, sentAt := context.Background(), c.wheel.Now()
		node, err := redisconn.Node(c.base, req.name())
		if errors.Is(err, redisconn.ErrNodes) {
			err = argument.Error("WithReplicas", fmt.Sprintf("%T", c.rdb), "needs a client whose nodes are known")
		}
		if err != nil {
			return sender.Failed(err), sentAt
		}
		conn := node.Conn()
		defer conn.Close()
		cmd := what.Script.RunOnce(ctx, conn, what.Keys, what.Args...)
		if g, err := readGrant(&redisconn.Reply{Cmd: cmd}, req.wantsToken()); err == nil && g.taken {
			got, err := conn.Wait(ctx, want.n, want.timeout).Result()
			switch {
			case err != nil:
				missing = fmt.Errorf("%w: %w", ErrReplicas, err)
			case got < int64(want.n):
				missing = fmt.Errorf("%w: %d of %d within %v", ErrReplicas, got, want.n, want.timeout)
			default:
				missing = nil
			}
		}
		return cmd, sentAt
	})
	return r, missing
}

package scripts

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Mixed is one execution of a script within a batch of several scripts.
type Mixed struct {
	Script *Script
	Keys   []string
	Args   []any
}

// RunMixedOnce executes calls of different scripts in one pipeline and returns
// their commands in the same order. Like RunOnce it is not repeated after a lost
// reply: then each command whose reply was not seen carries the error. Calls that a
// server refused because it did not know the script are sent again by text, in one
// more pipeline; no others are.
func RunMixedOnce(ctx context.Context, c Pipeliner, calls []Mixed) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	pipe := c.Pipeline()
	for i, call := range calls {
		cmd := newOnce(ctx, "evalsha", call.Script.SHA(), call.Keys, call.Args)
		cmds[i] = cmd.Cmd
		_ = pipe.Process(ctx, cmd) // only queues
	}
	exec(ctx, pipe, slices.Values(cmds))

	var again redis.Pipeliner
	for i, call := range calls {
		if err := cmds[i].Err(); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
			continue
		}
		if again == nil {
			again = c.Pipeline()
		}
		cmd := newOnce(ctx, "eval", call.Script.source, call.Keys, call.Args)
		cmds[i] = cmd.Cmd
		_ = again.Process(ctx, cmd)
	}
	if again != nil {
		exec(ctx, again, slices.Values(cmds))
	}
	return cmds
}

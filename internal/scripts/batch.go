package scripts

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Call is one execution of a script within a batch.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any

	// Alone: the call does not share an execution, because it would have to be sent separately after it.
	Alone bool
}

// Call returns one execution of the script for a batch.
func (s *Script) Call(keys []string, args ...any) Call {
	return Call{Script: s, Keys: keys, Args: args}
}

// Pipeliner has the method that RunBatch needs; every redis.UniversalClient has it.
type Pipeliner interface {
	Pipeline() redis.Pipeliner
}

// RunBatch executes calls in one pipeline and returns their commands in the same order, each with its reply or error.
// If a server does not know the scripts of some calls, RunBatch sends these calls again by text, in a second
// pipeline. In a cluster the pipeline is split by node, and a failing node affects only its calls.
//
// go-redis follows the redirections of a cluster, but does not repeat a call whose reply is lost. If it repeated a
// pipeline while a slot migrates, it would send some calls twice at once, and read both replies into one command.
func RunBatch(ctx context.Context, c Pipeliner, calls []Call) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	var unknown redis.Pipeliner
	var texts []*redis.Cmd // of calls whose scripts a server did not know

	queue := func(pipe redis.Pipeliner, i int, verb, payload any) *redis.Cmd {
		cmd := newOnce(ctx, verb, payload, calls[i].Keys, calls[i].Args)
		cmds[i] = cmd.Cmd
		_ = pipe.Process(ctx, cmd) // only queues
		return cmd.Cmd
	}
	if len(calls) == 0 {
		return cmds
	}
	pipe := c.Pipeline()
	for i, call := range calls {
		queue(pipe, i, evalsha, call.Script.text().sha)
	}
	exec(ctx, pipe, cmds)
	for i, cmd := range cmds {
		if err := cmd.Err(); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
			continue
		}
		if unknown == nil {
			unknown = c.Pipeline()
		}
		// Each call sends the text: in a cluster every node needs it, and only go-redis knows the node of a call.
		texts = append(texts, queue(unknown, i, eval, calls[i].Script.text().source))
	}
	if unknown != nil {
		exec(ctx, unknown, texts)
	}
	return cmds
}

// InOrder reports whether RunBatch has sent a command in its first pipeline alone.
func InOrder(cmd *redis.Cmd) bool { return len(cmd.Args()) > 0 && cmd.Args()[0] == evalsha }

// exec sends a pipeline. Then each of its commands has a reply or an error. If the server refuses the set-up of the
// connection, such as AUTH or SELECT, go-redis leaves the commands without both; exec gives them the error of the
// pipeline.
func exec(ctx context.Context, pipe redis.Pipeliner, cmds []*redis.Cmd) {
	_, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range cmds {
		if cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
		plain(cmd)
	}
}

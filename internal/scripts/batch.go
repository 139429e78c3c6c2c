package scripts

import (
	"context"
	"iter"

	"github.com/redis/go-redis/v9"
)

// Call is one execution of a script within a batch.
type Call struct {
	Keys []string
	Args []any
}

// Pipeliner is what a batch needs of a client; every redis.UniversalClient has it.
type Pipeliner interface {
	Pipeline() redis.Pipeliner
}

// RunBatch executes the script for every call in one pipeline and returns their
// commands in the same order, each with its own reply or error. Calls that a
// server refused because it did not know the script are sent again by text, in
// one more pipeline; no others are. In a cluster the pipeline is split by node and
// a node that fails fails its own calls only.
func (s *Script) RunBatch(ctx context.Context, c Pipeliner, calls []Call) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	s.send(ctx, c, calls, cmds, all, "evalsha", s.SHA())

	var unknown []int
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	// All of them by text: in a cluster each node has to be told, and which
	// call goes to which node is the client's business.
	s.send(ctx, c, calls, cmds, unknown, "eval", s.source)
	return cmds
}

// send pipelines the calls at the given indexes and stores their commands.
func (s *Script) send(
	ctx context.Context, c Pipeliner, calls []Call, cmds []*redis.Cmd, indexes []int, verb, payload string,
) {
	if len(indexes) == 0 {
		return
	}
	pipe := c.Pipeline()
	for _, i := range indexes {
		cmd := newOnce(ctx, verb, payload, calls[i].Keys, calls[i].Args)
		cmds[i] = cmd.Cmd
		if s.once {
			_ = pipe.Process(ctx, cmd) // only queues
		} else {
			_ = pipe.Process(ctx, cmd.Cmd)
		}
	}
	exec(ctx, pipe, func(yield func(*redis.Cmd) bool) {
		for _, i := range indexes {
			if !yield(cmds[i]) {
				return
			}
		}
	})
}

// exec sends a pipeline. Afterwards each of its commands has an answer or an error. go-redis leaves commands
// without either when the server refuses the set-up of the connection, such as AUTH or SELECT; then the error
// of the pipeline is theirs.
func exec(ctx context.Context, pipe redis.Pipeliner, cmds iter.Seq[*redis.Cmd]) {
	_, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for cmd := range cmds {
		if cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
		plain(cmd)
	}
}

package scripts

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// maxShared is how many calls share a script at most. The server does nothing else meanwhile.
const maxShared = 100

// share is how calls of a script share one execution of another script, whose KEYS and ARGV are theirs one after
// the other. Its reply has as many integers for each call; the first is alone if the call has to be sent by itself.
type share struct {
	script     *Script
	keys, args int  // of a call; others do not share
	replies    int  // integers in the reply to a call
	single     bool // a call alone replies an integer instead of a list of one
	first      bool
}

// alone is the reply to a call that has to be sent by itself.
const alone = 2

// shares declares that calls of a script may share executions of another.
func shares(with share) trait { return func(s *Script) { s.share = &with } }

// Sharable reports whether the call may share a script with others.
func (c Call) Sharable() bool {
	return c.Script.share != nil && len(c.Keys) == c.Script.share.keys && len(c.Args) == c.Script.share.args
}

// RunSharedOnce is RunBatchOnce for calls to one server. Calls of a script that can share an execution do so, which
// costs the client and the server less. In a cluster, or behind a proxy of one, use RunBatchOnce: then RunSharedOnce
// reports crossSlot, and has sent the calls by themselves. It does the same with calls whose shared script the server
// refuses. Whether a call was executed alone, shared, or both, is the same to its caller: it is idempotent.
//
// Calls whose scripts say so are executed first, whatever their order: releases before acquisitions.
func RunSharedOnce(ctx context.Context, c Pipeliner, calls []Call) (cmds []*redis.Cmd, crossSlot bool) {
	cmds = make([]*redis.Cmd, len(calls))
	groups := group(calls)
	shared := make([]Call, len(groups))
	for i, members := range groups {
		shared[i] = join(calls, members)
	}
	var again []int // calls to be sent by themselves
	for i, cmd := range RunBatchOnce(ctx, c, shared) {
		members := groups[i]
		if len(members) == 1 {
			cmds[members[0]] = cmd
			continue
		}
		if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") {
			crossSlot = true
		}
		again = append(again, split(ctx, cmd, calls, members, cmds)...)
	}
	if len(again) > 0 {
		some := make([]Call, len(again))
		for i, n := range again {
			some[i] = calls[n]
		}
		for i, cmd := range RunBatchOnce(ctx, c, some) {
			cmds[again[i]] = cmd
		}
	}
	return cmds, crossSlot
}

// group returns the indexes of the calls that share a script, in the order of execution.
func group(calls []Call) (groups [][]int) {
	open := make(map[*Script]int, 2) // the group that has room
	var first, rest [][]int
	for i := range calls {
		s := calls[i].Script
		if !calls[i].Sharable() {
			rest = append(rest, []int{i})
			continue
		}
		to := &rest
		if s.share.first {
			to = &first
		}
		g, ok := open[s]
		if !ok || len((*to)[g]) == maxShared {
			g = len(*to)
			open[s] = g
			*to = append(*to, make([]int, 0, min(len(calls)-i, maxShared)))
		}
		(*to)[g] = append((*to)[g], i)
	}
	return append(first, rest...)
}

// join returns the call that does the work of its members.
func join(calls []Call, members []int) Call {
	one := calls[members[0]]
	if len(members) == 1 {
		return one
	}
	with := one.Script.share
	all := Call{
		Script: with.script,
		Keys:   make([]string, 0, len(members)*with.keys),
		Args:   make([]any, 0, len(members)*with.args),
	}
	for _, i := range members {
		all.Keys = append(all.Keys, calls[i].Keys...)
		all.Args = append(all.Args, calls[i].Args...)
	}
	return all
}

// split gives each member its part of the reply, or the error of a call that may have been executed, wholly or in part.
// It returns the members that have to be sent by themselves.
func split(ctx context.Context, cmd *redis.Cmd, calls []Call, members []int, cmds []*redis.Cmd) (again []int) {
	err := cmd.Err()
	_, refused := err.(redis.Error) //nolint:errorlint // go-redis does not wrap answers
	if refused && !Interrupted(err) {
		return members
	}
	with := calls[members[0]].Script.share
	n := with.replies
	reply, isList := cmd.Val().([]any)
	whole := isList && len(reply) == n*len(members)
	for at, i := range members {
		one := redis.NewCmd(ctx)
		cmds[i] = one
		switch {
		case err != nil:
			one.SetErr(err)
			continue
		case !whole:
			one.SetErr(Unexpected(cmd.Val()))
			continue
		}
		part := reply[at*n : (at+1)*n]
		switch {
		case part[0] == any(int64(alone)):
			again = append(again, i)
		case with.single:
			one.SetVal(part[0])
		default:
			one.SetVal(part)
		}
	}
	return again
}

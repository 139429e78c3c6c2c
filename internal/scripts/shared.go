package scripts

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// maxShared is the maximum number of calls that share a script. The server does nothing else while the script runs.
const maxShared = 100

// share describes how calls of one script share an execution of another script. The KEYS and ARGV of the shared script
// are those of the calls, one after the other, but for an argument in common. Its reply has the same number of integers for each call. If the first of
// them is notShared, the call has to be sent separately.
type share struct {
	script     *Script
	keys, args int  // numbers of keys and arguments of a call; a call with other numbers cannot share
	common     bool // the last argument is the same in all calls of an execution, which has it once, in front
	replies    int  // integers in the reply to a call
	single     bool // the reply to a separate call is an integer, not a list of one
	first      bool // shared executions come before all other calls
}

// notShared is the reply to a call that has to be sent separately.
const notShared = 2

// shares declares that calls of a script may share executions of another.
func shares(with share) trait { return func(s *Script) { s.share = &with } }

// Sharable reports whether the call may share a script with others.
func (c Call) Sharable() bool {
	return c.Script.share != nil && !c.Alone && len(c.Keys) == c.Script.share.keys && len(c.Args) == c.Script.share.args
}

// RunShared is RunBatch for calls to one server. Calls that can share an execution do so, which costs the
// client and the server less. If the server refuses a shared script, RunShared sends its calls separately.
// crossSlot reports that the server is a cluster, or a proxy of one: then use RunBatch from now on. The calls are
// idempotent, so it makes no difference whether a call was executed separately, shared, or both.
//
// Calls of scripts with share.first are executed first, whatever their order: releases before acquisitions.
func RunShared(ctx context.Context, c Pipeliner, calls []Call) (cmds []*redis.Cmd, crossSlot bool) {
	cmds = make([]*redis.Cmd, len(calls))
	groups := group(calls)
	shared := make([]Call, len(groups))
	for i, members := range groups {
		shared[i] = join(calls, members)
	}
	var again []int // calls to be sent separately
	for i, cmd := range RunBatch(ctx, c, shared) {
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
		for i, cmd := range RunBatch(ctx, c, some) {
			cmds[again[i]] = cmd
		}
	}
	return cmds, crossSlot
}

// group returns the indexes of the calls that share a script, in the order of execution.
func group(calls []Call) (groups [][]int) {
	open := make(map[kindOfCall]int, 2) // index of the group that has room
	var first, rest [][]int
	for i := range calls {
		if !calls[i].Sharable() {
			rest = append(rest, []int{i})
			continue
		}
		s := calls[i].sharedAs()
		to := &rest
		if s.script.share.first {
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

// kindOfCall is what the calls of an execution have in common.
type kindOfCall struct {
	script *Script
	common any
}

func (c Call) sharedAs() kindOfCall {
	if !c.Script.share.common {
		return kindOfCall{script: c.Script}
	}
	return kindOfCall{c.Script, c.Args[len(c.Args)-1]}
}

// join returns the shared call of its members, or the call of a single member.
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
	args := with.args
	if with.common {
		args--
		all.Args = append(all.Args, one.Args[args])
	}
	for _, i := range members {
		all.Keys = append(all.Keys, calls[i].Keys...)
		all.Args = append(all.Args, calls[i].Args[:args]...)
	}
	return all
}

// split sets the command of each member: its part of the reply, or the error of a call that may have executed, wholly
// or in part. It returns the members that have to be sent separately.
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
	all := make([]redis.Cmd, len(members))
	for at, i := range members {
		one := &all[at]
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
		case part[0] == any(int64(notShared)):
			again = append(again, i)
		case with.single:
			one.SetVal(part[0])
		default:
			one.SetVal(part)
		}
	}
	return again
}

package scripts

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// maxShared is the maximum number of calls that share a script. The server does nothing else while the script runs.
const maxShared = 100

// share describes how calls of one script share an execution of another script. The KEYS and ARGV of the shared script
// are those of the calls, one after the other, but for the arguments in common. Its reply has the same number of
// integers for each call. If the first of them is notShared, the call has to be sent separately.
type share struct {
	script     *Script
	keys, args int   // numbers of keys and arguments of a call; a call with other numbers cannot share
	own        []int // indexes of the arguments that may differ; an execution has the others once, in front
	common     []int // indexes of the others
	replies    int   // integers in the reply to a call
	single     bool  // the reply to a separate call is an integer, not a list of one
	first      bool  // shared executions come before all other calls
}

// notShared is the reply to a call that has to be sent separately.
const notShared = 2

// shares declares that calls of a script may share executions of another.
func shares(with share) trait {
	for i := range with.args {
		if !slices.Contains(with.own, i) {
			with.common = append(with.common, i)
		}
	}
	return func(s *Script) { s.share = &with }
}

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
		again = append(again, split(cmd, calls, members, cmds)...)
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

// maxOpen is how many groups stay open for further calls. If more kinds of calls come, the oldest group gets no more.
const maxOpen = 8

// openGroup is a group that further calls can join.
type openGroup struct {
	groups *[][]int
	at     int
}

// group returns the indexes of the calls that share a script, in the order of execution.
func group(calls []Call) (groups [][]int) {
	var first, rest [][]int
	var open []openGroup
	for i, call := range calls {
		if !call.Sharable() {
			rest = append(rest, []int{i})
			continue
		}
		found := slices.IndexFunc(open, func(o openGroup) bool { return call.sharesWith(&calls[(*o.groups)[o.at][0]]) })
		if found < 0 {
			to := &rest
			if call.Script.share.first {
				to = &first
			}
			if len(open) == maxOpen {
				open = open[1:]
			}
			found = len(open)
			open = append(open, openGroup{to, len(*to)})
			*to = append(*to, make([]int, 0, min(len(calls)-i, maxShared)))
		}
		members := &(*open[found].groups)[open[found].at]
		if *members = append(*members, i); len(*members) == maxShared {
			open = slices.Delete(open, found, found+1)
		}
	}
	return append(first, rest...)
}

// sharesWith reports whether two sharable calls may be in one execution.
func (c Call) sharesWith(other *Call) bool {
	return c.Script == other.Script && !slices.ContainsFunc(c.Script.share.common, func(i int) bool {
		return c.Args[i] != other.Args[i]
	})
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
		Args:   make([]any, 0, len(with.common)+len(members)*len(with.own)),
	}
	for _, i := range with.common {
		all.Args = append(all.Args, one.Args[i])
	}
	for _, member := range members {
		all.Keys = append(all.Keys, calls[member].Keys...)
		for _, i := range with.own {
			all.Args = append(all.Args, calls[member].Args[i])
		}
	}
	return all
}

// split sets the command of each member: its part of the reply, or the error of a call that may have executed, wholly
// or in part. It returns the members that have to be sent separately.
func split(cmd *redis.Cmd, calls []Call, members []int, cmds []*redis.Cmd) (again []int) {
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

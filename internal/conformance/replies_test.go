package conformance_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// replyCall is a call of the public API whose reply is arbitrary. It reports whether it granted anything, in the widest
// sense: a lock, a permit, a release, a longer lease. An impossible result counts as granted and has an error.
type replyCall[C any] struct {
	name  string
	first string // the reply to the scripts before next is called; if empty, they get the arbitrary reply too
	call  func(c C, next func()) (granted bool, err error)
	judge judge
}

// judge returns an error if the outcome of a call does not follow from the reply.
type judge func(r reply, granted bool, err error) error

// fuzzReplies answers calls with arbitrary replies.
func fuzzReplies[C interface{ Close(context.Context) error }](
	f *testing.F, open func(rdb redis.UniversalClient, w *wheel.Wheel) (C, error), calls []replyCall[C], seeds ...string,
) {
	f.Helper()
	for at := range calls {
		for _, text := range seeds {
			f.Add(uint8(at), text)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, text string) {
		if len(text) > 1000 {
			t.Skip("long")
		}
		which, raw := calls[int(at)%len(calls)], redistest.ParseReply(text)
		var granted bool
		var err error
		synctest.Test(t, func(t *testing.T) {
			server := &redistest.Replying{RoundTrip: 20 * time.Millisecond}
			server.Set(raw)
			if which.first != "" {
				server.Set(redistest.ParseReply(which.first))
			}
			rdb := server.Client(t)
			w, newErr := wheel.New()
			require.NoError(t, newErr)
			c, newErr := open(rdb, w)
			require.NoError(t, newErr)
			granted, err = which.call(c, func() { server.Set(raw) })
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.Close(ctx) // gives up the calls in flight
			time.Sleep(time.Hour)
			_ = rdb.Close()
			_, stopErr := w.Stop(context.Background())
			require.NoError(t, stopErr)
		})
		require.NoError(t, which.judge(replyOf(raw), granted, err), "%s: %q", which.name, text)
	})
}

// reply is a reply in the form in which scripts are judged.
type reply struct {
	raw  redistest.Reply
	list bool
	n    []int64 // the integers of a list, or the only integer; nil if there is anything else
}

func replyOf(raw redistest.Reply) reply {
	all, isList := raw.([]any)
	r := reply{raw: raw, list: isList}
	if !isList {
		all = []any{raw}
	}
	for _, x := range all {
		n, isInteger := x.(int64)
		if text, ok := x.(string); ok { // go-redis takes texts of integers for integers
			var err error
			n, err = strconv.ParseInt(text, 10, 64)
			isInteger = err == nil
		}
		if !isInteger {
			return reply{raw: raw, list: isList}
		}
		r.n = append(r.n, n)
	}
	return r
}

// consistent requires that a call which fails grants nothing.
func consistent(_ reply, granted bool, err error) error {
	if granted {
		return err
	}
	return nil
}

// means judges a call whose script grants by some replies and refuses by others. A reply that the script does not return
// is an error and grants nothing.
func means(script func(r reply) (ok, grants bool)) judge {
	return func(r reply, granted bool, err error) error {
		ok, grants := script(r)
		switch {
		case !ok && granted:
			return errors.New("granted by a reply that the script does not return")
		case !ok && err == nil:
			return errors.New("no error for a reply that the script does not return")
		case ok && granted != grants:
			return errors.New("does not mean what the script says")
		}
		return consistent(r, granted, err)
	}
}

// decides judges a call of a limiter, whose policy grants during outages. Its script returns integers; grants, if not nil,
// reports whether it may grant by them.
func decides(grants func(n []int64) bool) judge {
	return func(r reply, granted bool, err error) error {
		integers := r.list && r.n != nil
		if _, refused := r.raw.(error); refused {
			return nil // the policy decides
		}
		switch {
		case !integers && granted:
			return errors.New("granted by a reply that is no list of integers")
		case !integers && err == nil:
			return errors.New("no error for a reply that is no list of integers")
		case grants != nil && granted && !grants(r.n):
			return errors.New("granted by a reply that the script does not return")
		}
		return consistent(r, granted, err)
	}
}

func flag(n int64) bool { return n == 0 || n == 1 }

// oneFlag is a reply of 0 or 1.
func oneFlag(r reply) (ok, grants bool) {
	ok = !r.list && len(r.n) == 1 && flag(r.n[0])
	return ok, ok && r.n[0] == 1
}

// flags is a reply of n flags, all of which grant.
func flags(n int) func(r reply) (ok, grants bool) {
	return func(r reply) (ok, grants bool) {
		ok = r.list && len(r.n) == n && !slices.ContainsFunc(r.n, func(n int64) bool { return !flag(n) })
		return ok, ok && !slices.Contains(r.n, 0)
	}
}

// done is the result of a call that grants unless it fails.
func done(err error) (granted bool, _ error) { return err == nil, err }

// got is the result of a call that returns a hold.
func got[T any](hold *T, err error) (granted bool, _ error) { return hold != nil, err }

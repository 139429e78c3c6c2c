package semaphore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const anID = "000102030405060708090a0b0c0d0e0f"

// replyCall is a call of the public API whose reply is arbitrary. It reports whether it granted anything, in
// the widest sense: permits, a release, a change that was made.
type replyCall struct {
	name  string
	first string // the replies to what has to precede the call
	call  func(c *semaphore.Client, next func()) (granted bool, err error)
	// good reports whether the script may return the reply, and grants says whether it does by it.
	good func(r []int64) (ok, grants bool)
}

func semaphoreCall(f func(ctx context.Context, l *semaphore.Semaphore) (bool, error)) func(*semaphore.Client, func()) (bool, error) {
	return func(c *semaphore.Client, _ func()) (bool, error) { return f(context.Background(), c.Semaphore("s")) }
}

func flags(n int) func(r []int64) (ok, grants bool) {
	return func(r []int64) (ok, grants bool) {
		return len(r) == n && !slices.ContainsFunc(r, func(x int64) bool { return x != 0 && x != 1 }), !slices.Contains(r, 0)
	}
}

// oneInteger stands before the elements of a reply that is no list.
const oneInteger = -77

func flagReply(r []int64) (ok, grants bool) {
	return len(r) == 2 && r[0] == oneInteger && (r[1] == 0 || r[1] == 1), len(r) == 2 && r[1] == 1
}

func acquired(r []int64) (ok, grants bool) {
	return len(r) == 5 && (r[0] == 0 || r[0] == 1) && r[2] >= 0 && r[3] >= -1 && r[4] >= 0, len(r) == 5 && r[4] > 0
}

var replyCalls = []replyCall{
	{"Semaphore.TryAcquire", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		g, err := l.TryAcquire(ctx, 2)
		return g != nil, err
	}), acquired},
	{"Semaphore.Release", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		err := l.Release(ctx, anID)
		return err == nil, err
	}), flags(1)},
	{"Semaphore.UpdateLease", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		err := l.UpdateLease(ctx, anID, time.Minute)
		return err == nil, err
	}), flags(1)},
	{"Semaphore.Available", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		_, err := l.Available(ctx)
		return false, err
	}), nil},
	{"Semaphore.TrySetPermits", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		return l.TrySetPermits(ctx, 3)
	}), flagReply},
	{"Semaphore.Delete", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		return l.Delete(ctx)
	}), flagReply},
	{"Semaphore.State", "", semaphoreCall(func(ctx context.Context, l *semaphore.Semaphore) (bool, error) {
		s, err := l.State(ctx)
		for _, p := range s.Permits {
			if p.Lease < 0 && p.Lease != semaphore.Forever {
				panic("a lease of " + p.Lease.String())
			}
		}
		return false, err
	}), nil},
	{"Grant.Extend", "( 1 1 0 -1 5 )", func(c *semaphore.Client, next func()) (bool, error) {
		g, err := c.Semaphore("s").TryAcquire(context.Background(), 2)
		if err != nil {
			return false, err
		}
		next()
		before := g.Deadline()
		err = g.Extend(context.Background(), time.Hour)
		return g.Deadline().After(before), err
	}, flags(2)},
	{"Grant.Release", "( 1 1 0 -1 5 )", func(c *semaphore.Client, next func()) (bool, error) {
		g, err := c.Semaphore("s").TryAcquire(context.Background(), 2)
		if err != nil {
			return false, err
		}
		next()
		err = g.Release(context.Background())
		return err == nil, err
	}, flags(2)},
	{"FairSemaphore.TryAcquire", "", func(c *semaphore.Client, _ func()) (bool, error) {
		g, err := c.FairSemaphore("s").TryAcquire(context.Background(), 2)
		return g != nil, err
	}, acquired},
	{"CountingSemaphore.TryAcquire", "", func(c *semaphore.Client, _ func()) (bool, error) {
		err := c.CountingSemaphore("s").TryAcquire(context.Background(), 2)
		return err == nil, err
	}, func(r []int64) (ok, grants bool) {
		return len(r) == 4 && (r[0] == 0 || r[0] == 1) && (r[1] == 0 || r[1] == 1) && r[3] >= -1, len(r) == 4 && r[0] == 1
	}},
	{"CountingSemaphore.Release", "", func(c *semaphore.Client, _ func()) (bool, error) {
		err := c.CountingSemaphore("s").Release(context.Background(), 2)
		return err == nil, err
	}, func(r []int64) (ok, grants bool) {
		return len(r) == 1 && r[0] == 1, true // without a maximum, permits are added whether the semaphore exists or not
	}},
	{"CountingSemaphore.TrySetPermits", "", func(c *semaphore.Client, _ func()) (bool, error) {
		return c.CountingSemaphore("s").TrySetPermits(context.Background(), 2)
	}, flagReply},
	{"CountingSemaphore.Available", "", func(c *semaphore.Client, _ func()) (bool, error) {
		_, err := c.CountingSemaphore("s").Available(context.Background())
		return false, err
	}, nil},
}

// integersOf flattens a reply of integers; nil if it holds anything else.
func integersOf(r redistest.Reply) []int64 {
	integer := func(x any) (int64, bool) {
		switch x := x.(type) {
		case int64:
			return x, true
		case string: // go-redis takes texts of integers as such
			n, err := strconv.ParseInt(x, 10, 64)
			return n, err == nil
		}
		return 0, false
	}
	list, isList := r.([]any)
	if !isList {
		n, ok := integer(r)
		if !ok {
			return nil
		}
		return []int64{oneInteger, n}
	}
	out := []int64{}
	for _, x := range list {
		n, ok := integer(x)
		if !ok {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// checkReply makes a call whose reply is the given one. A reply that no script returns is an error that grants
// nothing; one that a script returns means what the script says.
func checkReply(t *testing.T, which replyCall, text string) error {
	reply := redistest.ParseReply(text)
	var granted bool
	var err error
	synctest.Test(t, func(t *testing.T) {
		server := &redistest.Replying{}
		server.Set(redistest.ParseReply(which.first))
		if which.first == "" {
			server.Set(reply)
		}
		rdb := server.Client(t)
		w, werr := wheel.New()
		require.NoError(t, werr)
		c, cerr := semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, cerr)
		granted, err = which.call(c, func() { server.Set(reply) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // what is under way is given up
		time.Sleep(time.Hour)
		_ = rdb.Close()
		_, werr = w.Stop(context.Background())
		require.NoError(t, werr)
	})
	if which.good == nil {
		return nil
	}
	if which.name == "FairSemaphore.TryAcquire" { // its reply begins with the list of what leaves
		list, _ := reply.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		reply = list[1:]
		if leaving, isList := list[0].([]any); !isList || len(leaving) > 0 {
			reply = nil
		}
	}
	ok, grants := which.good(integersOf(reply))
	switch {
	case !ok && granted:
		return errors.New("granted by a reply that the script does not return")
	case !ok && err == nil:
		return errors.New("no error for a reply that the script does not return")
	case ok && granted != grants:
		return errors.New("does not mean what the script says")
	}
	return nil
}

func FuzzReplies(f *testing.F) {
	for at := range replyCalls {
		for _, reply := range []string{
			"nil", "( )", "( nil )", "1", "0", "( 1 )", "( 0 )", "( 1 1 )", "( 1 0 )", "( 7 )", "( -1 -1 )", "( 1 1 1 )", "( 1 1 0 )",
			"( 1 0 0 -1 5 )", "( 1 0 0 -1 -5 )", "( 1 1 5 9223372036854775807 0 )", "( 1 9223372036854775807 9223372036854775807 3 0 )",
			"( 5 1 3 )", "( ( ) 1 1 0 -1 5 )", "( 1 1 1 -1 )", "( 1 1 1 9223372036854775807 )", "( 1 1 1 -9 )", "( 1 1 1 5 0 'id 9223372036854775807 )",
			"!WRONGTYPE_Operation", "!OOM_no|memory", "!", "~inf", "( ~1.5 )", "true", "inf", "( !NOSCRIPT )", "( 1 ( 1 ) )",
		} {
			f.Add(uint8(at), reply)
		}
	}
	f.Fuzz(func(t *testing.T, call uint8, reply string) {
		if len(reply) > 1000 {
			t.Skip("long")
		}
		which := replyCalls[int(call)%len(replyCalls)]
		if err := checkReply(t, which, reply); err != nil {
			t.Fatalf("%s: %q: %v", which.name, strings.TrimSpace(reply), err)
		}
	})
}

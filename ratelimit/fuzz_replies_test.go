package ratelimit_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// replyCall is a call of the public API whose reply is arbitrary. It reports whether it granted anything.
type replyCall struct {
	name string
	call func(ctx context.Context, c *ratelimit.Client) (granted bool, err error)
	// grants reports whether the script may return the integers and grants by them.
	grants func(r []int64) bool
}

const aDay = 24 * time.Hour

func between(n, least, most int64) bool { return least <= n && n <= most }

const exact = 1 << 53

func gcraGrants(r []int64) bool {
	return len(r) == 5 && between(r[0], 0, exact) && between(r[1], -exact, exact) && r[2] >= 0 && between(r[3], 0, 1) && r[4] == 1 &&
		r[1] >= r[0]+2*aDay.Microseconds()/5
}

func windowGrants(r []int64) bool {
	return len(r) == 4 && between(r[0], 0, exact) && between(r[1], -exact, exact) && between(r[2], -exact, exact) && r[2] > 0 && r[3] == 1
}

func slidingGrants(r []int64) bool {
	return len(r) == 5 && between(r[0], 0, exact) && between(r[1], 0, exact) && between(r[2], 0, exact) && r[3] < r[2] && r[4] == 1
}

var perDay = ratelimit.Limit{Rate: 5, Per: aDay, Burst: 5}

func allowed(r ratelimit.Result, err error) (bool, error) {
	if r.Remaining < 0 || r.Granted < 0 || r.Allowed && r.RetryAfter > 0 {
		return r.Allowed, errors.New("an impossible result")
	}
	return r.Allowed, err
}

func limiter(opts ...ratelimit.LimiterOption) func(context.Context, *ratelimit.Client) (bool, error) {
	return func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		return allowed(c.Limiter("k", perDay, opts...).AllowN(ctx, "key", 2))
	}
}

func reserving(opts ...ratelimit.LimiterOption) func(context.Context, *ratelimit.Client) (bool, error) {
	return func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		r, err := c.Limiter("k", perDay, opts...).Reserve(ctx, "key", 2)
		if err == nil && r.Settle(ctx, 1) == nil {
			err = r.Settle(ctx, 3)
		}
		return r != nil, err
	}
}

var byWindows = ratelimit.WithAlgorithm(ratelimit.FixedWindow)

var replyCalls = []replyCall{
	{"Limiter.AllowN", limiter(), gcraGrants},
	{"Limiter.AllowN, fixed windows", limiter(byWindows), windowGrants},
	{"Limiter.AllowN, sliding windows", limiter(bySliding), slidingGrants},
	{"Limiter.WaitN, sliding windows", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		err := c.Limiter("k", ratelimit.Limit{Rate: 5, Per: ratelimit.MaxPer, Burst: 5}, bySliding).WaitN(ctx, "key", 2)
		return err == nil, err
	}, nil},
	{"Limiter.AllowUpTo", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		r, err := c.Limiter("k", perDay).AllowUpTo(ctx, "key", 3)
		if r.Granted > 3 {
			return true, errors.New("more was granted than asked for")
		}
		return r.Granted > 0, err
	}, nil},
	{"Limiter.WaitN", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		err := c.Limiter("k", perDay).WaitN(ctx, "key", 2)
		return err == nil, err
	}, nil},
	{"Limiter.WaitN, fixed windows", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		err := c.Limiter("k", ratelimit.Limit{Rate: 5, Per: ratelimit.MaxPer, Burst: 5}, byWindows).WaitN(ctx, "key", 2)
		return err == nil, err
	}, nil},
	{"Limiter.Reserve", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		r, err := c.Limiter("k", perDay).Reserve(ctx, "key", 2)
		return r != nil, err
	}, nil},
	{"Limiter.Peek", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		_, err := allowed(c.Limiter("k", perDay).Peek(ctx, "key"))
		return false, err
	}, nil},
	{"StoredLimiter.AllowN", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		return allowed(c.StoredLimiter("l").AllowN(ctx, 2))
	}, nil},
	{"StoredLimiter.AllowUpTo", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		r, err := c.StoredLimiter("l").AllowUpTo(ctx, 3)
		if r.Granted > 3 {
			return true, errors.New("more was granted than asked for")
		}
		return allowed(r, err)
	}, nil},
	{"StoredLimiter.WaitN", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		err := c.StoredLimiter("l").WaitN(ctx, 2)
		return err == nil, err
	}, nil},
	{"StoredLimiter.TrySetRate", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		return c.StoredLimiter("l").TrySetRate(ctx, perDay)
	}, nil},
	{"StoredLimiter.Config", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		cfg, err := c.StoredLimiter("l").Config(ctx)
		if err == nil && (cfg.Limit.Rate < 1 || cfg.Limit.Per < time.Millisecond || cfg.KeepAlive < 0 ||
			cfg.Scope != ratelimit.Overall && cfg.Scope != ratelimit.PerClient) {
			return true, errors.New("an impossible limit")
		}
		return false, err
	}, nil},
	{"All.AllowN", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		return allowed(c.All(c.Limiter("a", perDay).Part("key"), c.Limiter("b", perDay, byWindows).Part("key")).AllowN(ctx, 2))
	}, func(r []int64) bool { return len(r) == 7 && r[1] == 1 }},
	{"All.AllowN, sliding windows", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		return allowed(c.All(c.Limiter("a", perDay).Part("key"), c.Limiter("b", perDay, bySliding).Part("key")).AllowN(ctx, 2))
	}, func(r []int64) bool { return len(r) == 8 && r[1] == 1 }},
	{"All.WaitN", func(ctx context.Context, c *ratelimit.Client) (bool, error) {
		err := c.All(c.Limiter("a", perDay).Part("key"), c.Limiter("b", perDay).Part("key")).WaitN(ctx, 2)
		return err == nil, err
	}, nil},
	{"Limiter.Reserve, fixed windows", reserving(byWindows), nil},
	{"Limiter.Reserve, sliding windows", reserving(bySliding), nil},
}

// integersOf returns a list of integers; go-redis takes texts of integers as such.
func integersOf(r redistest.Reply) (out []int64) {
	list, _ := r.([]any)
	for _, x := range list {
		switch x := x.(type) {
		case int64:
			out = append(out, x)
		case string:
			n, err := strconv.ParseInt(x, 10, 64)
			if err != nil {
				return nil
			}
			out = append(out, n)
		default:
			return nil
		}
	}
	return out
}

// checkReply makes a call whose reply is the given one. The policy grants during outages, and a reply that no
// script returns is none.
func checkReply(t *testing.T, which replyCall, text string) error {
	reply := redistest.ParseReply(text)
	var granted bool
	var err error
	synctest.Test(t, func(t *testing.T) {
		server := &redistest.Replying{RoundTrip: 20 * time.Millisecond}
		server.Set(reply)
		rdb := server.Client(t)
		w, werr := wheel.New()
		require.NoError(t, werr)
		c, cerr := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithLogger(slog.New(slog.DiscardHandler)),
			ratelimit.WithPolicy(ratelimit.FailOpen()))
		require.NoError(t, cerr)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		granted, err = which.call(ctx, c)
		cancel()
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // what is under way is given up
		time.Sleep(time.Hour)
		_ = rdb.Close()
		_, werr = w.Stop(context.Background())
		require.NoError(t, werr)
	})
	if _, refused := reply.(error); refused {
		return nil // refusals that are outages are granted by the policy
	}
	switch {
	case err != nil && granted:
		return err
	case which.name == "StoredLimiter.TrySetRate":
		if granted && reply != int64(1) && reply != "1" {
			return errors.New("set by another reply than 1")
		}
	case integersOf(reply) == nil && granted:
		return errors.New("granted by a reply that is no list of integers")
	case integersOf(reply) == nil && err == nil && which.name != "StoredLimiter.Config":
		return errors.New("no error for a reply that is no list of integers")
	case which.grants != nil && granted && !which.grants(integersOf(reply)):
		return errors.New("granted by a reply that the script does not return")
	}
	return nil
}

// FuzzReplies answers calls with arbitrary replies.
func FuzzReplies(f *testing.F) {
	for at := range replyCalls {
		for _, reply := range []string{
			"nil", "( )", "( nil )", "1", "0", "7", "( 1 )", "( 0 )", "( ~1.0 ~2.5 )", "inf", "!", "!OOM_no|memory", "!NOTCONFIGURED_no", "true",
			"( 1000000 1000000 0 0 1 )", "( 1000000 1000000 0 0 0 )", "( 1000000 1000000 0 0 9223372036854775807 )", "( 1000000 1000000 -5 0 1 )",
			"( 1000000 -9223372036854775808 0 0 1 )", "( 9223372036854775807 -5 9223372036854775807 0 0 )", "( 1000000 9007199254740992 0 0 0 )",
			"( 1000000 34561000000 0 0 1 )", "( 1000000 69121000000 0 0 1 )", "( 0 0 86400000 1 )", "( 5 0 86400000 0 )", "( 0 0 86400000 9223372036854775807 )", "( -9 -9 -9 1 )", "( 5 0 9223372036854775807 0 )",
			"( 5 86400000 5 0 0 0 )", "( 5 86400000 0 0 0 -1000002 )", "( 5 86400000 0 0 0 -1 )", "( 0 86400000 0 0 0 -5 )", "( 5 0 0 0 0 0 )", "( 5 86400000 0 0 0 0 2 )", "( 5 86400000 0 0 0 0 4 )", "( 5 86400000 0 0 0 -90 1 )",
			"( 0 0 0 0 0 0 )", "( 1 9223372036854775807 -9007199254740992 0 0 -9223372036854775808 )", "( 5 86400000 0 )", "( 0 0 0 )", "( -5 86400000 -3 )",
			"( 5 0 86400000 43200000 1 )", "( 5 5 86400000 0 0 )", "( 0 5 0 -90 0 )", "( 5 0 86400000 86400000 1 )", "( 5 0 0 0 1 )",
			"( 8589934590 8589934590 315360000000 0 0 )", "( 1 0 86400000 -172800000000 1 )", "( 1000000 1 1000000 0 1 1 86400000 5 )",
			"( 1000000 1 1000000 0 0 0 86400000 )", "( 1000000 0 1000000 0 5 0 86400000 )",
			"( 1000000 1 1000000 0 1000000 0 )", "( 1000000 0 1000000 0 0 0 0 )", "( rate 5 interval 86400000 type 0 )",
			"( rate 5 interval 9223372036854775807 type 1 keepAliveTime -7 )", "( rate 5 interval 1 type x )",
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
			t.Fatalf("%s: %q: %v", which.name, reply, err)
		}
	})
}

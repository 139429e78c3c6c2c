package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// refused is an answer of a server.
type refused string

func (e refused) Error() string { return string(e) }
func (refused) RedisError()     {}

// failures are how calls fail, under the names that docs/ratelimit.md gives them.
var failures = map[string][]error{
	"no connection":       {&net.OpError{Op: "dial", Err: errors.New("connection refused")}, io.EOF, redis.ErrPoolTimeout},
	"no answer in time":   {os.ErrDeadlineExceeded, context.DeadlineExceeded},
	"LOADING":             {refused("LOADING Redis is loading the dataset in memory")},
	"READONLY":            {refused("READONLY You can't write against a read only replica. script: c6a3, on @user_script:1.")},
	"MASTERDOWN":          {refused("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")},
	"CLUSTERDOWN":         {refused("CLUSTERDOWN The cluster is down")},
	"TRYAGAIN":            {refused("TRYAGAIN Multiple keys request during rehashing of slot")},
	"non local key":       {refused("ERR Script attempted to access a non local key in a cluster node script: c6a3, on @user_script:1.")},
	"OOM":                 {refused("OOM command not allowed when used memory > 'maxmemory'.")},
	"NOREPLICAS":          {refused("NOREPLICAS Not enough good replicas to write.")},
	"MISCONF":             {refused("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")},
	"BUSY":                {refused("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")},
	"max clients":         {refused("ERR max number of clients reached")},
	"NOAUTH":              {refused("NOAUTH Authentication required.")},
	"WRONGPASS":           {refused("WRONGPASS invalid username-password pair or user is disabled.")},
	"NOPERM":              {refused("NOPERM this user has no permissions to run the 'evalsha' command"), refused("ERR The user executing the script can't run this command or subcommand")},
	"DENIED":              {refused("DENIED Redis is running in protected mode")},
	"NOPROTO":             {refused("NOPROTO unsupported protocol version")},
	"CROSSSLOT":           {refused("CROSSSLOT Keys in request don't hash to the same slot")},
	"unknown command":     {refused("ERR unknown command 'EVALSHA', with args beginning with: "), refused("ERR Unknown Redis command called from script script: 9325")},
	"the client, closed":  {redis.ErrClosed},
	"WRONGTYPE":           {refused("WRONGTYPE Operation against a key holding the wrong kind of value script: 1298, on @user_script:1.")},
	"OLDFORM":             {refused("OLDFORM the value is that of a Redisson before 3.13.3")},
	"NOTCONFIGURED":       {refused("NOTCONFIGURED no limit")},
	"any other answer":    {refused("ERR something that is not expected"), refused("upstream failure"), refused("")},
	"a fault of a script": {refused("ERR Script attempted to access nonexistent global variable 'x' script: c6a3, on @user_script:3.")},
}

// classes are the sections of the table in docs/ratelimit.md, and the error that each is.
var classes = map[string]error{
	"outage": ratelimit.ErrUnavailable, "misconfiguration": ratelimit.ErrMisconfigured, "key": ratelimit.ErrWrongKind,
	"limit": ratelimit.ErrNotSet, "login": ratelimit.ErrMisconfigured, "fault": nil,
}

// documentedClasses reads the table: the class of each failure.
func documentedClasses(t *testing.T) map[string]string {
	t.Helper()
	doc, err := os.ReadFile("../docs/ratelimit.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(doc), "## What an error means\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	class := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (.*?) \|`).FindAllStringSubmatch(section, -1) {
		if _, ok := classes[row[1]]; !ok {
			continue
		}
		for what := range strings.SplitSeq(row[2], ", ") {
			class[strings.Trim(strings.ReplaceAll(what, ";", ","), "`")] = row[1]
		}
	}
	return class
}

// failing makes every command fail.
type failing struct{ with atomic.Pointer[error] }

// fail gives a command an error, without what servers append for scripts if it is none.
func (*failing) fail(cmd redis.Cmder, err error) error {
	if answer, ok := err.(refused); ok && !strings.HasPrefix(cmd.Name(), "eval") { //nolint:errorlint // it is not wrapped
		text, _, _ := strings.Cut(string(answer), " script: ")
		err = refused(text)
	}
	cmd.SetErr(err)
	return err
}

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.with.Load(); err != nil {
			return f.fail(cmd, *err)
		}
		return next(ctx, cmd)
	}
}

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := f.with.Load(); err != nil {
			for _, cmd := range cmds {
				_ = f.fail(cmd, *err)
			}
			return *err
		}
		return next(ctx, cmds)
	}
}

// A failure means the same wherever it strikes, and is what the table says.
// Guarantees: Q19.
func TestRefusals_MeanWhatTheTableSays(t *testing.T) {
	t.Parallel()
	documented := documentedClasses(t)
	require.ElementsMatch(t, slices.Collect(maps.Keys(failures)), slices.Collect(maps.Keys(documented)))
	limit := perSeconds(1000, 3600)
	for what, class := range documented {
		for _, failure := range failures[what] {
			for policy, open := range map[string]bool{"open": true, "closed": false} {
				t.Run(what+", "+policy, func(t *testing.T) {
					t.Parallel()
					fault := &failing{}
					rdb := redistest.Shared(t).Client(t)
					rdb.AddHook(fault)
					opts := []ratelimit.Option{ratelimit.WithBreaker(1000, time.Second)}
					if open {
						opts = append(opts, ratelimit.WithPolicy(ratelimit.FailOpen()))
					}
					concernsKey := what == "TRYAGAIN" || what == "non local key"
					if concernsKey { // calls are repeated until their time is over
						opts = append(opts, ratelimit.WithTimeout(500*time.Millisecond))
					}
					c, name := newClient(t, rdb, opts...), redistest.Name(t)
					require.NoError(t, c.StoredLimiter(name).SetRate(t.Context(), limit))
					fault.with.Store(&failure)
					defer fault.with.Store(nil)
					requireClass(t, c, name, limit, class, open)
					if concernsKey {
						require.Zero(t, c.Stats().Failures, "it concerns a key")
					}
				})
			}
		}
	}
}

// requireClass requires that each call fails as its class says, or is decided by the policy.
func requireClass(t *testing.T, c *ratelimit.Client, name string, limit ratelimit.Limit, class string, open bool) {
	t.Helper()
	ctx := t.Context()
	k, window, l := c.Limiter("k", limit), c.Limiter("k", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)), c.StoredLimiter(name)
	fails := func(what string, err error) {
		t.Helper()
		require.Error(t, err, what)
		if want := classes[class]; want != nil {
			require.ErrorIs(t, err, want, what)
		}
		for _, never := range classes {
			if never != nil && !errors.Is(never, classes[class]) {
				require.NotErrorIs(t, err, never, what)
			}
		}
		requireOneLine(t, err)
	}
	byPolicy := func(what string, r ratelimit.Result, err error) {
		t.Helper()
		if open && class == "outage" {
			require.NoError(t, err, what)
			require.True(t, r.Allowed, what)
			require.Equal(t, ratelimit.SourceDegraded, r.Source, what)
			return
		}
		fails(what, err)
		require.False(t, r.Allowed, what)
	}
	r, err := k.Allow(ctx, name)
	byPolicy("Limiter.Allow", r, err)
	r, err = window.Allow(ctx, name)
	byPolicy("FixedWindow", r, err)
	r, err = c.Limiter("k", limit, bySliding).Allow(ctx, name)
	byPolicy("SlidingWindow", r, err)
	r, err = k.AllowUpTo(ctx, name, 3)
	byPolicy("Limiter.AllowUpTo", r, err)
	r, err = l.Allow(ctx)
	byPolicy("StoredLimiter.Allow", r, err)
	r, err = l.AllowUpTo(ctx, 3)
	byPolicy("StoredLimiter.AllowUpTo", r, err)

	_, err = k.Reserve(ctx, name, 1)
	fails("Limiter.Reserve", err)
	_, err = l.Reserve(ctx, 1)
	fails("StoredLimiter.Reserve", err)
	fails("Limiter.Reset", k.Reset(ctx, name))
	fails("SetRate", l.SetRate(ctx, limit))
	_, err = l.Config(ctx)
	fails("Config", err)
	_, err = l.Delete(ctx)
	fails("Delete", err)

	for what, wait := range map[string]func(context.Context) error{
		"Limiter.Wait":       func(ctx context.Context) error { return k.Wait(ctx, name) },
		"StoredLimiter.Wait": l.Wait,
	} {
		switch {
		case class != "outage":
			fails(what, wait(ctx))
		case open:
			require.NoError(t, wait(ctx), what)
		default: // it goes on
			require.ErrorIs(t, wait(within(t, 20*time.Millisecond)), context.DeadlineExceeded, what)
		}
	}
}

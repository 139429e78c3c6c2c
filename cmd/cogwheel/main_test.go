package main_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestMain(m *testing.M) { redistest.Main(m, redistest.DefaultWheel) }

// result is what one run of the tool left.
type result struct {
	status         int
	stdout, stderr string
}

// run runs the tool with a server's URL.
func run(t *testing.T, url string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cogwheel.Run(redistest.Within(t, redistest.Patience), args, url, &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

// must runs the tool and returns what it printed.
func must(t *testing.T, url string, args ...string) string {
	t.Helper()
	r := run(t, url, args...)
	require.Zero(t, r.status, "%v: %s", args, r.stderr)
	require.Empty(t, r.stderr, args)
	return r.stdout
}

// service is a program that holds one object of each kind, and lets no time change them.
type service struct {
	server *redistest.Server
	rdb    *redis.Client
	url    string
}

const ever = time.Hour // longer than any test

func startService(t *testing.T) *service {
	t.Helper()
	server := redistest.Start(t)
	s := &service{server: server, rdb: server.Client(t), url: "redis://" + server.Addr()}
	s.holdLocks(t)
	s.holdPermits(t)
	s.useLimits(t)
	s.serveTasks(t)
	return s
}

func (s *service) newLocks(t *testing.T) *redislock.Client {
	t.Helper()
	c, err := redislock.New(s.rdb, redislock.WithWheel(redistest.Wheel(t)), redislock.WithPoll(ever),
		redislock.WithLockDefaults(redislock.WithLease(ever), redislock.WithoutRenewal()))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

func (s *service) holdLocks(t *testing.T) {
	t.Helper()
	ctx, c, other := t.Context(), s.newLocks(t), s.newLocks(t)
	hold := func(m interface {
		TryLock(context.Context) (*redislock.Lock, error)
	},
	) {
		t.Helper()
		_, err := m.TryLock(ctx)
		require.NoError(t, err)
	}
	ignore := func(*redislock.Lock, error) {}
	hold(c.Mutex("stock:42", redislock.WithMetadata("worker-3 job 7"), redislock.WithFencing()))
	other.Mutex("stock:42").LockFunc(ctx, ignore)
	hold(c.FairMutex("report", redislock.WithMetadata("worker-3")))
	other.FairMutex("report", redislock.WithMetadata("worker-4")).LockFunc(ctx, ignore)
	redistest.Poll(t, func() bool { return s.rdb.LLen(ctx, "redisson_lock_queue:{report}").Val() == 1 })
	c.FairMutex("report", redislock.WithMetadata("worker-5")).LockFunc(ctx, ignore)
	hold(c.RWMutex("catalogue", redislock.WithMetadata("web-1")).Reader())
	hold(c.RWMutex("catalogue", redislock.WithMetadata("web-2")).Reader())
	hold(c.RWMutex("prices", redislock.WithMetadata("import")))
	hold(c.MultiMutex([]string{"account:7", "account:9"}))
	redistest.Poll(t, func() bool {
		return s.rdb.ZCard(ctx, "{stock:42}:waiting").Val() == 1 &&
			s.rdb.LLen(ctx, "redisson_lock_queue:{report}").Val() == 2
	})
}

func (s *service) holdPermits(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	c, err := semaphore.New(s.rdb, semaphore.WithWheel(redistest.Wheel(t)), semaphore.WithPoll(ever))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	long := []semaphore.SemaphoreOption{semaphore.WithLease(ever), semaphore.WithoutRenewal()}
	exports, uploads, seats := c.Semaphore("exports", 0, long...), c.FairSemaphore("uploads", 0, long...), c.CountingSemaphore("seats")
	for _, set := range []func(context.Context, int64) (bool, error){
		exports.TrySetPermits, uploads.TrySetPermits, seats.TrySetPermits,
	} {
		ok, err := set(ctx, 5)
		require.NoError(t, err)
		require.True(t, ok)
	}
	_, err = exports.Acquire(ctx, 2)
	require.NoError(t, err)
	_, err = uploads.Acquire(ctx, 4)
	require.NoError(t, err)
	uploads.AcquireFunc(ctx, 2, func(*semaphore.Grant, error) {})
	require.NoError(t, seats.Acquire(ctx, 3))
	redistest.Poll(t, func() bool { return s.rdb.ZCard(ctx, "{uploads}:fair:waiting").Val() == 1 })
}

func (s *service) useLimits(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	c, err := ratelimit.New(s.rdb, ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	smtp := c.StoredLimiter("smtp")
	require.NoError(t, smtp.SetRate(ctx, ratelimit.PerHour(100)))
	require.NoError(t, c.StoredLimiter("search").SetRate(ctx, ratelimit.PerHour(20), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithKeepAlive(2*ever)))
	daily := ratelimit.Limit{Rate: 100, Per: 24 * time.Hour, Burst: 100}
	for _, allow := range []func(context.Context, int64) (ratelimit.Result, error){
		smtp.AllowN,
		func(ctx context.Context, n int64) (ratelimit.Result, error) {
			return c.Limiter("api", daily).AllowN(ctx, "user-7", n)
		},
		func(ctx context.Context, n int64) (ratelimit.Result, error) {
			k := c.Limiter("login", ratelimit.PerHour(100), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
			return k.AllowN(ctx, "198.51.100.7", n)
		},
		func(ctx context.Context, n int64) (ratelimit.Result, error) {
			k := c.Limiter("mail", ratelimit.PerHour(100), ratelimit.WithAlgorithm(ratelimit.SlidingWindow))
			return k.AllowN(ctx, "ada", n)
		},
		func(ctx context.Context, n int64) (ratelimit.Result, error) {
			return c.Limiter("api", daily).AllowN(ctx, strings.Repeat("long", 40), n)
		},
	} {
		r, err := allow(ctx, 40)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

// serveTasks serves a queue with one worker, whose task does not end. Two tasks are pending, one has failed.
func (s *service) serveTasks(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	c, err := delay.New(s.rdb, delay.WithWheel(redistest.Wheel(t)), delay.WithPoll(ever))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	orders := c.Queue("orders", delay.WithLease(ever), delay.WithRetry(1, delay.Backoff(ever, ever)))
	served := make(chan error, 1)
	go func() {
		served <- orders.Serve(context.WithoutCancel(ctx), 1, func(ctx context.Context, task *delay.Task) error {
			if task.ID == "order-3" {
				return errors.New("no such order")
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	t.Cleanup(func() {
		require.NoError(t, c.Close(context.WithoutCancel(ctx)))
		require.NoError(t, <-served)
	})
	schedule := func(id string, after time.Duration) {
		t.Helper()
		require.NoError(t, orders.Schedule(ctx, id, after, []byte("close "+id)))
	}
	schedule("order-3", 0)
	redistest.Poll(t, func() bool { return c.Stats().Exhausted == 1 && s.rdb.ZCard(ctx, "{orders}:delay:failed").Val() == 1 })
	schedule("order-5", 0)
	redistest.Poll(t, func() bool { return c.Stats().Running == 1 })
	schedule("order-7", ever/2)
	schedule("order-9", ever)
	schedule("order-5", ever) // after the one that runs
	redistest.Poll(t, func() bool {
		return s.rdb.PubSubNumSub(ctx, "cogwheel_delay:{orders}").Val()["cogwheel_delay:{orders}"] == 1
	})
}

// replacement stands for what differs between runs: ids, tokens, times and figures.
type replacement struct {
	pattern *regexp.Regexp
	with    string
}

var (
	ids = []replacement{
		{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+`), "ID"},
		{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "PERMIT"},
		{regexp.MustCompile(`\b\d{16}\b`), "TOKEN"},
	}
	inText = append(slices.Clone(ids),
		replacement{regexp.MustCompile(`\b\d+/s\b`), "N/s"},
		replacement{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
		replacement{regexp.MustCompile(`\b(redis|valkey) \d+\.\d+\.\d+`), "SERVER"},
		replacement{regexp.MustCompile(`clock is .*`), "clock is near"},
		replacement{regexp.MustCompile(`PoolSize \d+`), "PoolSize N"},
		replacement{regexp.MustCompile(`\b([\d.]+(h|ms|m|s|µs))+\b`), "TIME"},
		replacement{regexp.MustCompile(` +`), " "})
	inJSON = append(slices.Clone(ids),
		replacement{regexp.MustCompile(`"(\w+_(?:ms|us)|per_second)": [\d.]+`), `"$1": N`})
)

func normalised(text string, replacements []replacement) string {
	for _, r := range replacements {
		text = r.pattern.ReplaceAllString(text, r.with)
	}
	return text
}

// The commands in docs/tool.md print what the document shows, in its order. UPDATE=1 writes the document.
func TestCommands_PrintWhatTheDocumentShows(t *testing.T) {
	t.Parallel()
	s := startService(t)
	const document = "../../docs/tool.md"
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	shown := map[string]bool{}
	blocks := regexp.MustCompile("(?s)```console\n\\$ (cogwheel [^\n]*)\n(.*?)```")
	updated := blocks.ReplaceAllStringFunc(string(text), func(block string) string {
		parts := blocks.FindStringSubmatch(block)
		line, args := parts[1], words(parts[1])[1:]
		shown[args[0]] = true
		if at := slices.Index(args, "--holder"); at >= 0 {
			id := s.holderOf(t, args[len(args)-1])
			line, args[at+1] = strings.Replace(line, args[at+1], id, 1), id
		}
		if args[0] == "bench" && os.Getenv("UPDATE") == "" {
			args = append(args, "--duration", "50ms") // its lines are the same
		}
		r := run(t, s.url, args...)
		if os.Getenv("UPDATE") == "" {
			require.Equal(t, normalised(parts[2], inText), normalised(r.stdout+r.stderr, inText), "%v", args)
		}
		return "```console\n$ " + line + "\n" + r.stdout + r.stderr + "```"
	})
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(document, []byte(updated), 0o600))
	}
	for _, command := range []string{"list", "inspect", "permits", "limit", "tasks", "unlock", "check", "bench"} {
		require.True(t, shown[command], "the document shows %s", command)
	}
}

// words splits a command line as a shell does, as far as the document needs it.
func words(line string) (args []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		args = append(args, strings.Trim(w, "'"))
	}
	return args
}

// holderOf returns the id under which a lock is held.
func (s *service) holderOf(t *testing.T, name string) string {
	t.Helper()
	fields, err := s.rdb.HKeys(t.Context(), name).Result()
	require.NoError(t, err)
	fields = slices.DeleteFunc(fields, func(f string) bool { return f == "mode" })
	require.NotEmpty(t, fields)
	slices.Sort(fields)
	return fields[0]
}

// The tool has a timeout of its own, which says nothing about the service.
func TestCheck_TellsTheTimeoutOfDecisionsThatAServiceHas(t *testing.T) {
	t.Parallel()
	out := must(t, "redis://"+redistest.Shared(t).Addr(), "check", "--packages", "ratelimit")
	require.Contains(t, out, "at most 250ms")
}

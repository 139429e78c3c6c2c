package statusz_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/contrib/statusz"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// get returns the response to a request, which must succeed.
func get(t *testing.T, h http.Handler, query string, fields ...string) string {
	t.Helper()
	w := serve(h, http.MethodGet, query, fields...)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String()
}

// serve serves a request with fields, each a name and a value.
func serve(h http.Handler, method, query string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/debug/cogwheel"+query, nil)
	for field := range slices.Chunk(fields, 2) {
		r.Header.Add(field[0], field[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// getJSON returns the first of the objects of a kind.
func getJSON(t *testing.T, h http.Handler, kind, query string) map[string]any {
	t.Helper()
	var page map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(get(t, h, query, "Accept", "application/json")), &page))
	var objects []map[string]any
	require.NoError(t, json.Unmarshal(page[kind], &objects))
	require.NotEmpty(t, objects)
	return objects[0]
}

// requireFact checks that a page shows a value under a label.
func requireFact(t *testing.T, html, label string, value any) {
	t.Helper()
	require.Contains(t, html, fmt.Sprintf("<dt>%s</dt><dd>%v</dd>", label, value))
}

func TestHandler_ShowsAWheel(t *testing.T) {
	t.Parallel()
	w := redistest.Wheel(t)
	fired := make(chan struct{})
	for _, d := range []time.Duration{0, time.Hour, time.Hour} {
		_, err := w.AfterFunc(d, func() { close(fired) })
		require.NoError(t, err)
	}
	<-fired
	h := statusz.Handler(statusz.Wheel("main", w))
	html := get(t, h, "")
	require.Contains(t, html, `<h2>Wheel main <span>tick 1 ms</span></h2>`)
	requireFact(t, html, "pending", 2)
	requireFact(t, html, "fired", 1)
	got := getJSON(t, h, "wheels", "")
	require.Equal(t, "main", got["name"])
	require.InDelta(t, 0.001, got["tick_seconds"], 0)
	require.EqualValues(t, 2, got["pending"])
	lateness, _ := got["lateness"].(map[string]any)
	require.EqualValues(t, 1, lateness["count"])
	require.InDelta(t, w.Stats().Lateness.Quantile(0.99).Seconds(), lateness["p99_seconds"], 0)
}

func TestHandler_ShowsLocks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	locks, err := redislock.New(redistest.Shared(t).Client(t), redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, locks.Close)
	name := redistest.Name(t)
	mutex := locks.Mutex(name, redislock.WithFencing(), redislock.WithMetadata("pod 7"))
	lock, err := mutex.Lock(ctx)
	require.NoError(t, err)
	_, err = locks.RWMutex(name + ":rw").RLock(ctx)
	require.NoError(t, err)
	unlocked := make(chan error, 2)
	for range 2 {
		mutex.LockFunc(ctx, func(l *redislock.Lock, err error) {
			if err == nil {
				err = l.Unlock(context.Background())
			}
			unlocked <- err
		})
	}

	h := statusz.Handler(statusz.Locks("orders", locks))
	html := get(t, h, "")
	require.Contains(t, html, "<h2>Locks orders</h2>")
	requireFact(t, html, "held", 2)
	requireFact(t, html, "calls waiting", 2)
	status := getJSON(t, h, "locks", "")
	require.EqualValues(t, 2, status["held"])
	require.EqualValues(t, 2, status["waiting"])
	holds, _ := status["holds"].([]any)
	require.Len(t, holds, 2)
	first, _ := holds[0].(map[string]any)
	require.Equal(t, name, first["name"], "the lock that calls wait for comes first")
	require.Equal(t, "mutex", first["kind"])
	require.Equal(t, "pod 7", first["metadata"])
	require.EqualValues(t, lock.Token(), first["token"])
	require.EqualValues(t, 2, first["waiting"])
	require.InDelta(t, 25, first["deadline_in_seconds"], 10, "of a lease of 30 s")
	require.Equal(t, []any{map[string]any{"name": name, "kind": "mutex", "calls": 2.0}}, status["waits"])

	require.NoError(t, lock.Unlock(ctx))
	require.NoError(t, <-unlocked)
	require.NoError(t, <-unlocked)
	status = getJSON(t, h, "locks", "")
	require.EqualValues(t, 4, status["acquired"])
	require.EqualValues(t, 3, status["released"])
	require.Zero(t, status["waiting"])
	require.NoError(t, locks.Close(ctx))
	status = getJSON(t, h, "locks", "")
	require.Zero(t, status["held"], "after Close")
	require.Empty(t, status["holds"])
	require.EqualValues(t, 4, status["released"])
}

func TestHandler_ShowsSemaphores(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	semaphores, err := semaphore.New(redistest.Shared(t).Client(t), semaphore.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, semaphores.Close)
	name := redistest.Name(t)
	plain := semaphores.Semaphore(name, 0)
	require.NoError(t, plain.SetPermits(ctx, 3))
	_, err = plain.Acquire(ctx, 2)
	require.NoError(t, err)
	semaphores.Semaphore(name, 0).AcquireFunc(ctx, 3, func(*semaphore.Grant, error) {})
	counting := semaphores.CountingSemaphore(name + ":counting")
	_, err = counting.TrySetPermits(ctx, 5)
	require.NoError(t, err)
	require.NoError(t, counting.Acquire(ctx, 4))
	require.NoError(t, counting.Release(ctx, 1))

	h := statusz.Handler(statusz.Semaphores("reports", semaphores))
	html := get(t, h, "")
	requireFact(t, html, "permits held", 2)
	requireFact(t, html, "calls waiting", 1)
	requireFact(t, html, "permits taken (counting)", 4)
	requireFact(t, html, "returned (counting)", 1)
	status := getJSON(t, h, "semaphores", "")
	require.EqualValues(t, 2, status["held"])
	require.EqualValues(t, 1, status["grants"])
	require.Equal(t, []any{map[string]any{"name": name, "kind": "semaphore", "calls": 1.0}}, status["waits"])
	holds, _ := status["holds"].([]any)
	require.Len(t, holds, 1)
	hold, _ := holds[0].(map[string]any)
	require.Equal(t, name, hold["name"])
	require.EqualValues(t, 2, hold["permits"])
	require.EqualValues(t, 1, hold["waiting"])
	require.NoError(t, semaphores.Close(ctx))
	require.Zero(t, getJSON(t, h, "semaphores", "")["held"], "after Close")
}

func TestHandler_ShowsTasks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	delays, err := delay.New(redistest.Shared(t).Client(t), delay.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, delays.Close)
	queue := delays.Queue(redistest.Name(t), delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Millisecond)))
	for id, after := range map[string]time.Duration{"succeeds": 0, "fails": 0, "runs": 0, "waits": time.Hour, "never": time.Hour} {
		require.NoError(t, queue.Schedule(ctx, id, after, nil))
	}
	cancelled, err := queue.Cancel(ctx, "never")
	require.NoError(t, err)
	require.True(t, cancelled)
	served := make(chan error, 1)
	go func() {
		served <- queue.Serve(context.WithoutCancel(ctx), 3, func(ctx context.Context, task *delay.Task) error {
			switch task.ID {
			case "fails":
				return errors.New("no stock")
			case "runs":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
	}()
	redistest.Poll(t, func() bool {
		s := delays.Stats()
		return s.Done == 1 && s.Exhausted == 1 && s.Running == 1 && s.Claimed == 1
	})

	h := statusz.Handler(statusz.Delays("orders", delays))
	html := get(t, h, "")
	require.Contains(t, html, "<h2>Tasks orders</h2>")
	require.Contains(t, html, "Since the start: Tasks orders: 1 failed</p>")
	counts := map[string]int{
		"queues served": 1, "running": 1, "claimed": 1, "scheduled": 5, "cancelled": 1, "done": 1, "retried": 1,
		"failed": 1, "handed back": 0, "attempts lost": 0,
	}
	for label, want := range counts {
		requireFact(t, html, label, want)
	}
	status := getJSON(t, h, "delays", "")
	for key, want := range map[string]int{
		"serving": 1, "running": 1, "claimed": 1, "scheduled": 5, "cancelled": 1, "done": 1, "retried": 1, "exhausted": 1,
		"handed_back": 0, "lost": 0,
	} {
		require.EqualValues(t, want, status[key], key)
	}
	lateness, _ := status["lateness"].(map[string]any)
	require.EqualValues(t, 4, lateness["count"])
	attempt, _ := status["attempt"].(map[string]any)
	require.EqualValues(t, 3, attempt["count"])
	require.Nil(t, status["last_error"])
	require.NoError(t, delays.Close(ctx))
	require.NoError(t, <-served)
	status = getJSON(t, h, "delays", "")
	require.Zero(t, status["serving"], "after Close")
	require.Zero(t, status["claimed"])
	require.EqualValues(t, 1, status["handed_back"])
}

// stats is a delay.Client with some Stats.
type stats delay.Stats

func (s stats) Stats() delay.Stats { return delay.Stats(s) }

func TestHandler_ShowsWhatBecomesOfTasks(t *testing.T) {
	t.Parallel()
	html := get(t, statusz.Handler(statusz.Delays("orders", stats{Overdue: 20 * time.Second})), "")
	require.Contains(t, html, "<h2>No problem now</h2>")
	h := statusz.Handler(statusz.Delays("orders", stats{
		Paused: 5, Overdue: 8 * time.Minute, Exhausted: 1, LostTooOften: 2, Deleted: 3, NoPayload: 4,
	}))
	html = get(t, h, "")
	require.Contains(t, html, "<h2>Problems now</h2>")
	require.Contains(t, html, "<li>Tasks orders: overdue for 8 min 00 s</li>")
	require.Contains(t, html, "Tasks orders: 1 failed")
	require.Contains(t, html, "Tasks orders: 2 failed by losses")
	require.Contains(t, html, "Tasks orders: 3 failed and deleted")
	require.Contains(t, html, "Tasks orders: 4 removed without payload")
	for label, want := range map[string]int{"failed by losses": 2, "failed and deleted": 3, "removed without payload": 4, "queues paused": 5} {
		requireFact(t, html, label, want)
	}
	status := getJSON(t, h, "delays", "")
	for key, want := range map[string]int{"overdue_seconds": 480, "lost_too_often": 2, "deleted": 3, "no_payload": 4, "paused": 5} {
		require.EqualValues(t, want, status[key], key)
	}
}

func TestHandler_ShowsLimitsAndTheirBreaker(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	limits, err := ratelimit.New(server.Client(t), ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithPolicy(ratelimit.FailOpen()))
	require.NoError(t, err)
	redistest.CloseWith(t, limits.Close)
	limit := limits.Limiter("api", ratelimit.PerHour(1))
	for range 3 {
		_, err = limit.Allow(ctx, "key")
		require.NoError(t, err)
	}
	h := statusz.Handler(statusz.Limits("api", limits))
	html := get(t, h, "")
	requireFact(t, html, "breaker", "closed")
	requireFact(t, html, "allowed", 1)
	requireFact(t, html, "denied", 2)
	require.NotContains(t, html, "would be denied")
	require.NotContains(t, html, "last error")
	for range 3 {
		_, err = limits.Limiter("api", ratelimit.PerHour(1), ratelimit.WithShadow()).Allow(ctx, "key")
		require.NoError(t, err)
	}
	requireFact(t, get(t, h, ""), "would be denied", 3)
	requireFact(t, get(t, h, ""), "denied", 2)
	require.EqualValues(t, 3, getJSON(t, h, "limits", "")["shadow_denied"])
	require.EqualValues(t, 2, getJSON(t, h, "limits", "")["denied"])

	server.Kill()
	for !limits.Stats().Down {
		r, err := limit.Allow(ctx, redistest.Name(t))
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceDegraded, r.Source)
	}
	require.Contains(t, get(t, h, ""), "<dt>breaker</dt><dd>open for ")
	require.Contains(t, get(t, h, ""), "calls in a row without an answer; last error: ")
	status := getJSON(t, h, "limits", "")
	breaker, _ := status["breaker"].(map[string]any)
	require.Equal(t, true, breaker["open"])
	require.Equal(t, server.Addr(), breaker["node"])
	require.NotEmpty(t, breaker["last_error"])
	require.EqualValues(t, limits.Stats().Degraded, status["degraded"])
	server.Restart(t)
	redistest.Poll(t, func() bool { return !limits.Stats().Down })
	requireFact(t, get(t, h, ""), "breaker", "closed")
	require.Contains(t, get(t, h, ""), "Redis answers again; last error: ")
}

// While Redis is down, the page says so on top, and shows the last error of locks and of permits.
func TestHandler_BeginsWithAVerdict(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := redistest.Start(t)
	w := redistest.Wheel(t)
	options := func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }
	locks, err := redislock.New(server.Client(t, options), redislock.WithWheel(w))
	require.NoError(t, err)
	t.Cleanup(func() { _ = locks.Close(context.Background()) }) // it cannot release what Redis has lost
	semaphores, err := semaphore.New(server.Client(t, options), semaphore.WithWheel(w))
	require.NoError(t, err)
	t.Cleanup(func() { _ = semaphores.Close(context.Background()) })
	delays, err := delay.New(server.Client(t, options), delay.WithWheel(w))
	require.NoError(t, err)
	t.Cleanup(func() { _ = delays.Close(context.Background()) })
	idle, err := redislock.New(server.Client(t, options), redislock.WithWheel(w))
	require.NoError(t, err)
	redistest.CloseWith(t, idle.Close)
	permits := semaphores.Semaphore(redistest.Name(t), 3)
	_, err = locks.Mutex(redistest.Name(t), redislock.WithLease(time.Second)).Lock(ctx)
	require.NoError(t, err)
	_, err = permits.Acquire(ctx, 1)
	require.NoError(t, err)

	h := statusz.Handler(statusz.Wheel("main", w), statusz.Delays("tasks", delays),
		statusz.Semaphores("reports", semaphores), statusz.Locks("orders", locks), statusz.Locks("idle", idle))
	html := get(t, h, "")
	require.Contains(t, html, "<h2>No problem now</h2>")
	require.Contains(t, html, ", up ")
	require.Contains(t, html, "<p>library (devel)</p>")
	require.NotContains(t, html, "last error")
	order := []string{"No problem now", "Locks orders", "Locks idle", "Semaphores reports", "Tasks tasks", "Wheel main"}
	for i := range len(order) - 1 {
		require.Less(t, strings.Index(html, order[i]), strings.Index(html, order[i+1]), order[i])
	}

	server.Kill()
	_, err = permits.TryAcquire(ctx, 1)
	require.Error(t, err)
	require.Error(t, delays.Queue("orders").Schedule(ctx, "order-7", 0, nil))
	redistest.Poll(t, func() bool { return locks.Stats().Lost == 1 }) // its renewals have failed
	html = get(t, h, "")
	require.Contains(t, html, "<h2>Problems now</h2>")
	require.Regexp(t, `<li>Locks orders: failed [^<]*connection refused`, html)
	require.Regexp(t, `<li>Semaphores reports: failed [^<]*connection refused`, html)
	require.Regexp(t, `<li>Tasks tasks: failed [^<]*connection refused`, html)
	require.NotContains(t, html, "<li>Locks idle")
	require.Equal(t, 3, strings.Count(html, `<p class="more">last error, `))
	require.Contains(t, html, "Since the start: Locks orders: 1 lost</p>")
	status := getJSON(t, h, "semaphores", "")
	last, _ := status["last_error"].(map[string]any)
	require.Contains(t, last["error"], "connection refused")
	require.Less(t, last["seconds_ago"], 60.0)
	server.Restart(t)
}

// old is a client whose last error is long over.
type old struct{ crowd }

func (o old) Stats() redislock.Stats {
	return redislock.Stats{Err: errors.New("connection refused"), ErrAt: o.now.Add(-time.Hour)}
}

func TestHandler_AnOldErrorIsNoProblemNow(t *testing.T) {
	t.Parallel()
	html := get(t, statusz.Handler(statusz.Locks("orders", old{crowd{now: time.Now()}})), "")
	require.Contains(t, html, "<h2>No problem now</h2>")
	require.Contains(t, html, "last error, 1 h 00 min ago: connection refused")
}

// crowd is a client with many locks.
type crowd struct {
	names []string
	now   time.Time
}

func (c crowd) Stats() redislock.Stats {
	return redislock.Stats{Held: len(c.names), Waiting: len(c.names)}
}

func (c crowd) Holds() iter.Seq[redislock.Hold] {
	return func(yield func(redislock.Hold) bool) {
		for i, name := range c.names {
			since := c.now.Add(-time.Duration(i*7919%100_000) * time.Second)
			if !yield(redislock.Hold{Name: name, Kind: redislock.KindMutex, Since: since, Deadline: c.now.Add(time.Minute)}) {
				return
			}
		}
	}
}

func (c crowd) Waits() iter.Seq[redislock.Wait] {
	return func(yield func(redislock.Wait) bool) {
		for _, name := range c.names {
			if !yield(redislock.Wait{Name: name, Kind: redislock.KindMutex, Calls: 1}) {
				return
			}
		}
	}
}

func TestHandler_IsBoundedWithManyLocks(t *testing.T) {
	t.Parallel()
	c := crowd{now: time.Now()}
	for i := range 100_000 {
		c.names = append(c.names, fmt.Sprintf("lock-%06d", i))
	}
	h := statusz.Handler(statusz.Locks("many", c))
	html := get(t, h, "")
	require.Less(t, len(html), 64<<10)
	requireFact(t, html, "held", 100000)
	require.Equal(t, 2*50, strings.Count(html, `<td data-label="lock" class="name">lock-`))
	require.Contains(t, html, "and 99950 more")
	for i := range 50 {
		longest := (99_999 - i) * 17_679 % 100_000 // 7919 * 17679 is 1 modulo 100 000
		require.Contains(t, html, fmt.Sprintf("lock-%06d", longest), "those held longest")
	}

	c.names = c.names[:10_100]
	status := getJSON(t, statusz.Handler(statusz.Locks("fewer", c)), "locks", "?rows=1000000")
	require.Len(t, status["holds"], 10_000)
	require.EqualValues(t, 100, status["waits_left_out"])

	c.names = c.names[:60]
	h = statusz.Handler(statusz.Locks("few", c))
	for query, rows := range map[string]int{"?rows=7": 7, "?rows=59": 59, "?rows=60": 60, "?rows=-1": 50, "?rows=x": 50} {
		status := getJSON(t, h, "locks", query)
		require.Len(t, status["holds"], rows, query)
		require.EqualValues(t, 60-rows, status["holds_left_out"], query)
	}
}

func TestHandler_ShowsHostileNamesAsText(t *testing.T) {
	t.Parallel()
	c := crowd{now: time.Now(), names: []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "a\x00\xff\nb", "safe\u202egnp.exe",
		strings.Repeat("ä", 32<<10), "{{.}}", "&lt;b&gt;",
	}}
	h := statusz.Handler(statusz.Locks(`<i>"name`, c))
	html := get(t, h, "")
	for _, raw := range []string{"<script", "<img", "<i>", "\x00", "\xff", "\u202e", "&lt;b&gt;</td>"} {
		require.NotContains(t, html, raw)
	}
	require.Contains(t, html, "&lt;script&gt;alert(1)&lt;/script&gt;")
	require.Contains(t, html, `&#34;a\x00\xff\nb&#34;`, "bytes that are no text are quoted")
	require.Contains(t, html, `safe\u202egnp.exe`)
	require.Contains(t, html, "class=\"name\">"+strings.Repeat("ä", 64)+"…</td>", "a long name is cut between runes")
	require.Contains(t, html, "{{.}}")
	require.Less(t, len(html), 64<<10)
	body := get(t, h, "?format=json")
	require.NotContains(t, body, "<")
	require.Less(t, len(body), 64<<10)
}

func TestHandler_ChoosesTheFormat(t *testing.T) {
	t.Parallel()
	h := statusz.Handler()
	for accept, want := range map[string]string{
		"": "text/html", "*/*": "text/html", "application/json": "application/json", "text/html,application/json": "text/html",
		"application/json;q=0.9,text/html;q=0.8": "application/json", "text/html;q=0.9, application/json ;q=0.8": "text/html",
		"Application/JSON, */*;q=0.1": "application/json", "application/json;q=x": "text/html",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html",
	} {
		w := serve(h, http.MethodGet, "", "Accept", accept)
		require.Contains(t, w.Header().Get("Content-Type"), want, accept)
	}
	require.Contains(t, get(t, h, "?format=html", "Accept", "application/json"), "<!DOCTYPE html>")
	require.True(t, json.Valid([]byte(get(t, h, "?format=json", "Accept", "text/html"))))
	require.NotContains(t, get(t, h, ""), "http-equiv")
	require.Contains(t, get(t, h, "?refresh=5"), `<meta http-equiv="refresh" content="5">`)
	require.NotContains(t, get(t, h, "?refresh=0;url=http://example.com"), "http-equiv")
}

func TestHandler_AnswersGetAndHeadOnly(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(statusz.Handler())
	defer server.Close()
	for method, status := range map[string]int{
		http.MethodGet: 200, http.MethodHead: 200, http.MethodPost: 405, http.MethodDelete: 405,
	} {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		require.NoError(t, err)
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, status, response.StatusCode, method)
		if status == 200 {
			require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
			require.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
		}
	}
}

// A forgotten client is found when the handler is made, not when an operator needs the page.
func TestSources_OfNilObjectsPanic(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(){
		"wheel":             func() { statusz.Wheel("", (*wheel.Wheel)(nil)) },
		"no wheel":          func() { statusz.Wheel("", nil) },
		"renewer":           func() { statusz.Renewer("", nil) },
		"lock client":       func() { statusz.Locks("", (*redislock.Client)(nil)) },
		"no lock client":    func() { statusz.Locks("", nil) },
		"limit client":      func() { statusz.Limits("", (*ratelimit.Client)(nil)) },
		"no limit client":   func() { statusz.Limits("", nil) },
		"semaphores":        func() { statusz.Semaphores("", (*semaphore.Client)(nil)) },
		"delays":            func() { statusz.Delays("", (*delay.Client)(nil)) },
		"no delays":         func() { statusz.Delays("", nil) },
		"no semaphores":     func() { statusz.Semaphores("", nil) },
		"a Source of zeros": func() { statusz.Handler(statusz.Source{}) },
	} {
		require.Panics(t, source, name)
	}
}

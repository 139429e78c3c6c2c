package cogwheelotel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/contrib/cogwheelotel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// process has one client of each kind, with hooks and observers.
type process struct {
	rdb        *redis.Client
	wheel      *wheel.Wheel
	locks      *redislock.Client
	limits     *ratelimit.Client
	semaphores *semaphore.Client
	delays     *delay.Client
	renewer    *renewal.Renewer

	spans  *tracetest.InMemoryExporter
	tracer trace.Tracer
	reader *sdkmetric.ManualReader

	registrations []metric.Registration
}

func newProcess(t *testing.T, server *redistest.Server) *process {
	t.Helper()
	p := &process{
		rdb: server.Client(t), wheel: redistest.Wheel(t),
		spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader(),
	}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(p.spans))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader))
	p.tracer = tracers.Tracer("test")
	telemetry, err := cogwheelotel.New(
		cogwheelotel.WithTracerProvider(tracers), cogwheelotel.WithMeterProvider(meters))
	require.NoError(t, err)

	p.locks, err = redislock.New(p.rdb, redislock.WithWheel(p.wheel), redislock.WithHooks(telemetry.LockHooks("orders")))
	require.NoError(t, err)
	redistest.CloseWith(t, p.locks.Close)
	p.semaphores, err = semaphore.New(p.rdb,
		semaphore.WithWheel(p.wheel), semaphore.WithHooks(telemetry.SemaphoreHooks("reports")))
	require.NoError(t, err)
	redistest.CloseWith(t, p.semaphores.Close)
	p.limits, err = ratelimit.New(p.rdb, ratelimit.WithWheel(p.wheel), ratelimit.WithTimeout(redistest.Patience/3), ratelimit.WithHooks(telemetry.LimitHooks("api")))
	require.NoError(t, err)
	redistest.CloseWith(t, p.limits.Close)
	p.delays, err = delay.New(p.rdb, delay.WithWheel(p.wheel), delay.WithHooks(telemetry.DelayHooks("tasks")))
	require.NoError(t, err)
	redistest.CloseWith(t, p.delays.Close)
	p.renewer, err = renewal.New(p.wheel)
	require.NoError(t, err)
	redistest.CloseWith(t, p.renewer.Close)

	for _, observe := range []func() (metric.Registration, error){
		func() (metric.Registration, error) { return telemetry.ObserveWheel("main", p.wheel) },
		func() (metric.Registration, error) { return telemetry.ObserveLocks("orders", p.locks) },
		func() (metric.Registration, error) { return telemetry.ObserveSemaphores("reports", p.semaphores) },
		func() (metric.Registration, error) { return telemetry.ObserveLimits("api", p.limits) },
		func() (metric.Registration, error) { return telemetry.ObserveDelays("tasks", p.delays) },
		func() (metric.Registration, error) { return telemetry.ObserveRenewer("leases", p.renewer) },
	} {
		r, err := observe()
		require.NoError(t, err)
		p.registrations = append(p.registrations, r)
	}
	return p
}

// span is what a test expects of a span, or found.
type span struct {
	name, outcome string
	code          codes.Code
}

// request calls f with the context of a span and returns the spans that are its children, in the order in which
// they ended, without their times.
func (p *process) request(t *testing.T, f func(context.Context)) (children tracetest.SpanStubs, parent tracetest.SpanStub) {
	t.Helper()
	p.spans.Reset()
	ctx, root := p.tracer.Start(t.Context(), "request")
	f(ctx)
	root.End()
	for _, s := range p.spans.GetSpans() {
		if s.Name == "request" {
			parent = s
			continue
		}
		require.Equal(t, root.SpanContext().SpanID(), s.Parent.SpanID(), s.Name)
		children = append(children, s)
	}
	return children, parent
}

func attributesOf(all []attribute.KeyValue) map[string]any {
	m := make(map[string]any)
	for _, a := range all {
		m[string(a.Key)] = a.Value.AsInterface()
	}
	return m
}

func requireSpans(t *testing.T, found tracetest.SpanStubs, want ...span) {
	t.Helper()
	got := []span{}
	for _, s := range found {
		outcome, _ := attributesOf(s.Attributes)["cogwheel.outcome"].(string)
		got = append(got, span{s.Name, outcome, s.Status.Code})
		require.False(t, s.EndTime.Before(s.StartTime), s.Name)
	}
	require.Equal(t, want, got)
}

func TestLockHooks_MakeSpansOfWaitsAndHolds(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	name := redistest.Name(t)
	mutex := p.locks.Mutex(name, redislock.WithFencing())

	var lock *redislock.Lock
	spans, _ := p.request(t, func(ctx context.Context) {
		var err error
		lock, err = mutex.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(context.Background()), "the hold belongs to the request by its values")
	})
	requireSpans(t, spans, span{"lock.wait", "acquired", codes.Unset}, span{"lock.hold", "released", codes.Unset})
	wait, hold := attributesOf(spans[0].Attributes), attributesOf(spans[1].Attributes)
	for _, of := range []map[string]any{wait, hold} {
		require.Equal(t, "orders", of["cogwheel.client.name"])
		require.Equal(t, "mutex", of["cogwheel.kind"])
		require.Equal(t, name, of["cogwheel.lock.name"])
		require.Equal(t, lock.Token(), of["cogwheel.token"])
		require.NotEmpty(t, of["cogwheel.lock.id"])
	}

	held, err := mutex.Lock(t.Context())
	require.NoError(t, err)
	spans, parent := p.request(t, func(ctx context.Context) {
		_, err := mutex.TryLock(ctx)
		require.ErrorIs(t, err, redislock.ErrLocked)
	})
	requireSpans(t, spans, span{"lock.wait", "contended", codes.Unset})
	require.Len(t, parent.Events, 1)
	require.Equal(t, "lock.contended", parent.Events[0].Name)

	spans, _ = p.request(t, func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		var ended sync.WaitGroup
		ended.Add(1)
		_ = mutex.LockFunc(ctx, func(_ *redislock.Lock, err error) {
			defer ended.Done()
			require.Error(t, err)
		})
		cancel()
		ended.Wait()
	})
	require.Len(t, spans, 1)
	require.Contains(t, []any{"contended", "cancelled"}, attributesOf(spans[0].Attributes)["cogwheel.outcome"])

	// A lost lock is a failed span of the request that took it.
	require.NoError(t, held.Unlock(t.Context()))
	spans, _ = p.request(t, func(ctx context.Context) {
		lock, err := p.locks.Mutex(name, redislock.WithLease(time.Second), redislock.WithoutRenewal()).Lock(ctx)
		require.NoError(t, err)
		<-lock.Done()
		redistest.Poll(t, func() bool { return p.locks.Stats().Lost == 1 && len(p.spans.GetSpans()) == 2 })
	})
	requireSpans(t, spans, span{"lock.wait", "acquired", codes.Unset}, span{"lock.hold", "lost", codes.Error})
	require.Contains(t, spans[1].Status.Description, "lock lost")
	require.Len(t, spans[1].Events, 1, "the error")
	lasted := spans[1].EndTime.Sub(spans[1].StartTime)
	require.Greater(t, lasted, 50*time.Millisecond)
	require.Less(t, lasted, redistest.Patience)
}

func TestLockHooks_AFailureIsAFailedSpan(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	name := redistest.Name(t)
	require.NoError(t, p.rdb.Set(t.Context(), name, "no lock", 0).Err())
	spans, _ := p.request(t, func(ctx context.Context) {
		_, err := p.locks.Mutex(name).Lock(ctx)
		require.ErrorIs(t, err, redislock.ErrWrongKind)
	})
	requireSpans(t, spans, span{"lock.wait", "failed", codes.Error})
}

func TestSemaphoreHooks_MakeSpansOfWaitsAndHolds(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	ctx, name := t.Context(), redistest.Name(t)
	plain := p.semaphores.Semaphore(name, 0)
	require.NoError(t, plain.SetPermits(ctx, 2))
	spans, parent := p.request(t, func(ctx context.Context) {
		grant, err := plain.Acquire(ctx, 2)
		require.NoError(t, err)
		_, err = plain.TryAcquire(ctx, 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		require.NoError(t, grant.Release(ctx))
	})
	requireSpans(t, spans, span{"permit.wait", "acquired", codes.Unset}, span{"permit.wait", "contended", codes.Unset},
		span{"permit.hold", "released", codes.Unset})
	require.Len(t, parent.Events, 1)
	require.Equal(t, "permit.contended", parent.Events[0].Name)
	hold := attributesOf(spans[2].Attributes)
	require.Equal(t, "reports", hold["cogwheel.client.name"])
	require.Equal(t, "semaphore", hold["cogwheel.kind"])
	require.Equal(t, name, hold["cogwheel.semaphore.name"])
	require.EqualValues(t, 2, hold["cogwheel.permits"])

	counting := p.semaphores.CountingSemaphore(name + ":counting")
	_, err := counting.TrySetPermits(ctx, 2)
	require.NoError(t, err)
	spans, _ = p.request(t, func(ctx context.Context) {
		require.NoError(t, counting.Acquire(ctx, 1))
		require.NoError(t, counting.Release(ctx, 1))
	})
	requireSpans(t, spans, span{"permit.wait", "acquired", codes.Unset})
}

func TestLimitHooks_MakeSpansOfDecisions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := newProcess(t, server)
	limit := p.limits.Limiter("api", ratelimit.PerHour(1))
	allow := func(ctx context.Context) error {
		_, err := limit.Allow(ctx, "user-7")
		return err
	}
	spans, _ := p.request(t, func(ctx context.Context) {
		require.NoError(t, allow(ctx))
		require.NoError(t, allow(ctx))
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, limit.Wait(ctx, "user-7"), context.Canceled)
	})
	requireSpans(t, spans, span{"limit.decision", "allowed", codes.Unset}, span{"limit.decision", "denied", codes.Unset},
		span{"limit.decision", "cancelled", codes.Unset})
	denied := attributesOf(spans[1].Attributes)
	require.Equal(t, "api", denied["cogwheel.limit.name"])
	require.Equal(t, "user-7", denied["cogwheel.limit.key"])
	require.Equal(t, "local", denied["cogwheel.limit.source"])
	require.Equal(t, false, denied["cogwheel.limit.shadow"])
	require.Positive(t, denied["cogwheel.limit.retry_after"])

	require.NoError(t, allow(t.Context()))
	require.Len(t, p.spans.GetSpans(), 4, "a call outside of a sampled span makes none")

	tried := p.limits.Limiter("api", ratelimit.PerHour(1), ratelimit.WithShadow())
	spans, _ = p.request(t, func(ctx context.Context) {
		_, err := tried.Allow(ctx, "user-7")
		require.NoError(t, err)
	})
	requireSpans(t, spans, span{"limit.decision", "denied", codes.Unset})
	require.Equal(t, true, attributesOf(spans[0].Attributes)["cogwheel.limit.shadow"])

	server.Kill()
	for !p.limits.Stats().Down {
		spans, _ = p.request(t, func(ctx context.Context) {
			_, err := limit.Allow(ctx, redistest.Name(t))
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		})
		requireSpans(t, spans, span{"limit.decision", "failed", codes.Error})
	}
	p.spans.Reset()
	server.Restart(t)
	redistest.Poll(t, func() bool { return len(p.spans.GetSpans()) > 0 })
	requireSpans(t, p.spans.GetSpans(), span{"limit.outage", "", codes.Unset})
	require.Equal(t, server.Addr(), attributesOf(p.spans.GetSpans()[0].Attributes)["cogwheel.limit.node"])
}

// serve serves a queue under a span, until the returned function is called.
func (p *process) serve(t *testing.T, queue *delay.Queue, handle func(context.Context, *delay.Task) error) (end func()) {
	t.Helper()
	ctx, _ := p.tracer.Start(t.Context(), "serve")
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- queue.Serve(ctx, 1, handle) }()
	end = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-served)
	})
	t.Cleanup(end)
	return end
}

func TestDelayHooks_AnAttemptLinksToItsScheduler(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	queue := p.delays.Queue(redistest.Name(t), delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Millisecond)))
	_, request := p.request(t, func(ctx context.Context) {
		require.NoError(t, queue.Schedule(ctx, "order-7", 0, nil))
	})
	p.spans.Reset()
	var handled []trace.SpanContext
	end := p.serve(t, queue, func(ctx context.Context, task *delay.Task) error {
		handled = append(handled, trace.SpanContextFromContext(ctx))
		_, child := p.tracer.Start(ctx, "close order")
		child.End()
		if task.Failures == 0 {
			return errors.New("no stock")
		}
		return nil
	})
	redistest.Poll(t, func() bool { return p.delays.Stats().Done == 1 })
	end()

	spans := p.spans.GetSpans()
	requireSpans(t, spans,
		span{"close order", "", codes.Unset}, span{"task.attempt", "retried", codes.Error},
		span{"close order", "", codes.Unset}, span{"task.attempt", "done", codes.Unset})
	for i := range 2 {
		child, attempt := spans[2*i], spans[2*i+1]
		require.False(t, attempt.Parent.IsValid(), "an attempt is the root of a trace")
		require.NotEqual(t, request.SpanContext.TraceID(), attempt.SpanContext.TraceID())
		require.Len(t, attempt.Links, 1)
		require.Equal(t, request.SpanContext.TraceID(), attempt.Links[0].SpanContext.TraceID())
		require.Equal(t, request.SpanContext.SpanID(), attempt.Links[0].SpanContext.SpanID())
		require.Equal(t, attempt.SpanContext.SpanID(), handled[i].SpanID(), "the handler runs under the span")
		require.Equal(t, attempt.SpanContext.SpanID(), child.Parent.SpanID())
		of := attributesOf(attempt.Attributes)
		require.Equal(t, "tasks", of["cogwheel.client.name"])
		require.Equal(t, queue.Name(), of["cogwheel.queue.name"])
		require.Equal(t, "order-7", of["cogwheel.task.id"])
		require.EqualValues(t, i, of["cogwheel.task.failures"])
		require.EqualValues(t, 0, of["cogwheel.task.losses"])
		require.GreaterOrEqual(t, of["cogwheel.task.lateness"], 0.0)
		require.Positive(t, of["cogwheel.token"])
	}
	require.Greater(t, attributesOf(spans[3].Attributes)["cogwheel.token"], attributesOf(spans[1].Attributes)["cogwheel.token"])
	require.Equal(t, "no stock", spans[1].Status.Description)
}

func TestDelayHooks_ATaskScheduledWithoutASpanHasNoLink(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	queue := p.delays.Queue(redistest.Name(t))
	require.NoError(t, queue.Schedule(t.Context(), "order-7", 0, []byte("17 euros")))
	var payload []byte
	end := p.serve(t, queue, func(_ context.Context, task *delay.Task) error {
		payload = task.Payload
		return nil
	})
	redistest.Poll(t, func() bool { return p.delays.Stats().Done == 1 })
	end()
	require.Equal(t, "17 euros", string(payload))
	requireSpans(t, p.spans.GetSpans(), span{"task.attempt", "done", codes.Unset})
	require.Empty(t, p.spans.GetSpans()[0].Links)
}

// A task that was claimed and not begun has no span.
func TestDelayHooks_AHandedBackAttemptIsNoFailure(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	queue := p.delays.Queue(redistest.Name(t))
	runs := make(chan string, 3)
	end := p.serve(t, queue, func(ctx context.Context, task *delay.Task) error {
		if runs <- task.ID; task.ID == "fast" {
			return nil // after which tasks are claimed ahead
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.NoError(t, queue.Schedule(t.Context(), "fast", 0, nil))
	redistest.Poll(t, func() bool { return p.delays.Stats().Done == 1 })
	at := time.Now().Add(time.Second) // for both, so that one call claims them
	for _, id := range []string{"a", "b"} {
		require.NoError(t, queue.ScheduleAt(t.Context(), id, at, nil))
	}
	redistest.Poll(t, func() bool { return p.delays.Stats().HandedBack == 1 }) // the one that does not begin
	end()
	redistest.Poll(t, func() bool { return p.delays.Stats().HandedBack == 2 })
	requireSpans(t, p.spans.GetSpans(), span{"task.attempt", "done", codes.Unset},
		span{"task.attempt", "handed back", codes.Unset})
}

// collect returns the points of all metrics by name.
func (p *process) collect(t *testing.T) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, p.reader.Collect(context.Background(), &all))
	byName := make(map[string]metricdata.Metrics)
	for _, s := range all.ScopeMetrics {
		require.Equal(t, "github.com/cogwheel-go/cogwheel/contrib/cogwheelotel", s.Scope.Name)
		for _, m := range s.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// point is one point of a metric: its value, or the count of a histogram.
type point struct {
	attributes map[string]any
	value      float64
}

func points(t *testing.T, m metricdata.Metrics) (all []point) {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, d := range data.DataPoints {
			all = append(all, point{attributesOf(d.Attributes.ToSlice()), float64(d.Value)})
		}
	case metricdata.Gauge[float64]:
		for _, d := range data.DataPoints {
			all = append(all, point{attributesOf(d.Attributes.ToSlice()), d.Value})
		}
	case metricdata.Sum[float64]:
		for _, d := range data.DataPoints {
			all = append(all, point{attributesOf(d.Attributes.ToSlice()), d.Value})
		}
	case metricdata.Histogram[float64]:
		require.Equal(t, "s", m.Unit, m.Name)
		for _, d := range data.DataPoints {
			all = append(all, point{attributesOf(d.Attributes.ToSlice()), float64(d.Count)})
		}
	default:
		require.Fail(t, "another kind of metric", "%s: %T", m.Name, data)
	}
	return all
}

// use leaves a lock and a grant held, each with a call that waits, and a limit with an allowed, a denied and a
// waiting call, and a queue served whose task runs until Close.
func (p *process) use(t *testing.T) {
	t.Helper()
	ctx, name := t.Context(), redistest.Name(t)
	mutex := p.locks.Mutex(name)
	_, err := mutex.Lock(ctx)
	require.NoError(t, err)
	mutex.LockFunc(ctx, func(*redislock.Lock, error) {})
	plain := p.semaphores.Semaphore(name+":permits", 0)
	require.NoError(t, plain.SetPermits(ctx, 3))
	_, err = plain.Acquire(ctx, 2)
	require.NoError(t, err)
	plain.AcquireFunc(ctx, 3, func(*semaphore.Grant, error) {})
	limit := p.limits.Limiter(name, ratelimit.PerHour(1))
	for range 2 {
		_, err := limit.Allow(ctx, "key")
		require.NoError(t, err)
	}
	limit.WaitFunc(ctx, "key", 1, func(error) {})
	tasks := p.delays.Queue(name + ":tasks")
	require.NoError(t, tasks.Schedule(ctx, "runs", 0, nil))
	require.NoError(t, tasks.Schedule(ctx, "waits", time.Hour, nil))
	runs := make(chan struct{})
	p.serve(t, tasks, func(ctx context.Context, _ *delay.Task) error {
		close(runs)
		<-ctx.Done()
		return ctx.Err()
	})
	<-runs
	for range 2 { // the second would be denied
		_, err := p.limits.Limiter(name+":tried", ratelimit.PerHour(1), ratelimit.WithShadow()).Allow(ctx, "key")
		require.NoError(t, err)
	}
}

func TestObserve_ExportsTheStats(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	p.use(t)
	found := p.collect(t)
	client := func(name string) map[string]any { return map[string]any{"cogwheel.client.name": name} }
	for name, want := range map[string]point{
		"cogwheel.lock.held":           {client("orders"), 1},
		"cogwheel.lock.waiting":        {client("orders"), 1},
		"cogwheel.lock.acquired":       {client("orders"), 1},
		"cogwheel.lock.lost":           {client("orders"), 0},
		"cogwheel.lock.renewal.leases": {client("orders"), 1},
		"cogwheel.permit.held":         {client("reports"), 2},
		"cogwheel.permit.waiting":      {client("reports"), 1},
		"cogwheel.limit.waiting":       {client("api"), 1},
		"cogwheel.limit.breaker.open":  {client("api"), 0},
		"cogwheel.limit.keys":          {client("api"), 2},
		"cogwheel.task.serving":        {client("tasks"), 1},
		"cogwheel.task.running":        {client("tasks"), 1},
		"cogwheel.task.claimed":        {client("tasks"), 1},
		"cogwheel.task.scheduled":      {client("tasks"), 2},
		"cogwheel.task.cancelled":      {client("tasks"), 0},
		"cogwheel.task.last_error":     {client("tasks"), 0},
		"cogwheel.task.paused":         {client("tasks"), 0},
		"cogwheel.task.oldest_overdue": {client("tasks"), 0},
		"cogwheel.task.renewal.leases": {client("tasks"), 1},
		"cogwheel.renewal.leases":      {map[string]any{"cogwheel.renewer.name": "leases"}, 0},
	} {
		require.Contains(t, found, name)
		require.Equal(t, []point{want}, points(t, found[name]), name)
	}
	decisions := map[string]float64{}
	for _, d := range points(t, found["cogwheel.limit.decisions"]) {
		decisions[fmt.Sprint(d.attributes["cogwheel.outcome"], " ", d.attributes["cogwheel.limit.shadow"])] = d.value
	}
	require.Equal(t, map[string]float64{
		"allowed <nil>": 2, "denied false": 1, "denied true": 1, "cancelled <nil>": 0, "failed <nil>": 0,
	}, decisions)
	histogram := map[string]float64{}
	for _, d := range points(t, found["cogwheel.limit.decision.duration"]) {
		histogram[fmt.Sprint(d.attributes["cogwheel.outcome"], " ", d.attributes["cogwheel.limit.shadow"])] += d.value
	}
	require.Equal(t, map[string]float64{"allowed false": 1, "denied false": 1, "allowed true": 1, "denied true": 1}, histogram)
	for _, name := range []string{"cogwheel.lock.failed", "cogwheel.permit.failed"} {
		outcomes := map[any]float64{}
		for _, d := range points(t, found[name]) {
			outcomes[d.attributes["cogwheel.outcome"]] = d.value
		}
		require.Equal(t, map[any]float64{"contended": 0, "cancelled": 0, "failed": 0}, outcomes, name)
	}
	require.Len(t, points(t, found["cogwheel.wheel.timers.late"]), 4)
	require.Len(t, points(t, found["cogwheel.task.late"]), 4)
	attempts := map[any]float64{}
	for _, d := range points(t, found["cogwheel.task.attempts"]) {
		attempts[d.attributes["cogwheel.outcome"]] = d.value
	}
	require.Equal(t, map[any]float64{"done": 0, "retried": 0, "exhausted": 0, "handed back": 0, "lost": 0}, attempts)
	incidents := map[any]float64{}
	for _, d := range points(t, found["cogwheel.task.incidents"]) {
		incidents[d.attributes["cogwheel.kind"]] = d.value
	}
	require.Equal(t, map[any]float64{"lost too often": 0, "deleted": 0, "no payload": 0}, incidents)
	require.Equal(t, []point{{map[string]any{
		"cogwheel.client.name": "orders", "cogwheel.kind": "mutex", "cogwheel.outcome": "acquired",
	}, 1}}, points(t, found["cogwheel.lock.wait.duration"]))
}

// The number of series does not grow with names, keys or holders.
func TestObserve_HasNoAttributeOfAName(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	p.use(t)
	bounded := []string{
		"cogwheel.client.name", "cogwheel.wheel.name", "cogwheel.renewer.name", "cogwheel.kind", "cogwheel.outcome",
		"cogwheel.limit.source", "cogwheel.limit.waited", "cogwheel.limit.shadow", "cogwheel.wheel.late_by",
		"cogwheel.task.late_by",
	}
	for name, m := range p.collect(t) {
		require.NotEmpty(t, m.Description, name)
		require.NotEmpty(t, m.Unit, name)
		for _, point := range points(t, m) {
			for key := range point.attributes {
				require.Contains(t, bounded, key, name)
			}
		}
	}
}

func TestObserve_NumbersAreZeroAfterClose(t *testing.T) {
	t.Parallel()
	p := newProcess(t, redistest.Shared(t))
	p.use(t)
	ctx := t.Context()
	require.NoError(t, errors.Join(
		p.locks.Close(ctx), p.semaphores.Close(ctx), p.limits.Close(ctx), p.delays.Close(ctx), p.renewer.Close(ctx)))
	seen := 0
	for name, m := range p.collect(t) {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if !ok || sum.IsMonotonic || name == "cogwheel.wheel.timers.pending" {
			continue
		}
		seen++
		require.Zero(t, points(t, m)[0].value, name)
	}
	require.Equal(t, 15, seen)
	for _, r := range p.registrations {
		require.NoError(t, r.Unregister())
	}
	require.NotContains(t, p.collect(t), "cogwheel.lock.held", "after Unregister")
}

func TestNew_RefusesNil(t *testing.T) {
	t.Parallel()
	for _, o := range []cogwheelotel.Option{
		nil, cogwheelotel.WithTracerProvider(nil), cogwheelotel.WithMeterProvider(nil),
	} {
		_, err := cogwheelotel.New(o)
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
	}
	telemetry, err := cogwheelotel.New()
	require.NoError(t, err, "by default with the global providers")
	require.Panics(t, func() { _, _ = telemetry.ObserveLocks("none", (*redislock.Client)(nil)) })
}

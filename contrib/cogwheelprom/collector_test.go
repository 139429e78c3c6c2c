package cogwheelprom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelprom"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) {
	redistest.Child(runPlayed)
	redistest.Main(m)
}

// process has one object of each kind and their collectors.
type process struct {
	wheel      *wheel.Wheel
	renewer    *renewal.Renewer
	locks      *redislock.Client
	limits     *ratelimit.Client
	semaphores *semaphore.Client
	delays     *delay.Client
	registry   *prometheus.Registry
}

func newProcess(t *testing.T) *process {
	t.Helper()
	return newProcessOn(t, redistest.Shared(t).Client(t))
}

func newProcessOn(t *testing.T, rdb redis.UniversalClient) *process {
	t.Helper()
	p := &process{registry: prometheus.NewPedanticRegistry()}
	var err error
	p.wheel, err = wheel.New()
	require.NoError(t, err)
	p.renewer, err = renewal.New(p.wheel)
	require.NoError(t, err)
	p.locks, err = redislock.New(rdb, redislock.WithWheel(p.wheel))
	require.NoError(t, err)
	p.limits, err = ratelimit.New(rdb, ratelimit.WithWheel(p.wheel), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	p.semaphores, err = semaphore.New(rdb, semaphore.WithWheel(p.wheel))
	require.NoError(t, err)
	p.delays, err = delay.New(rdb, delay.WithWheel(p.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, p.close)
	p.registry.MustRegister(
		cogwheelprom.NewWheelCollector("main", p.wheel),
		cogwheelprom.NewRenewerCollector("leases", p.renewer),
		cogwheelprom.NewLockCollector("orders", p.locks),
		cogwheelprom.NewLimitCollector("api", p.limits),
		cogwheelprom.NewSemaphoreCollector("reports", p.semaphores),
		cogwheelprom.NewDelayCollector("tasks", p.delays),
	)
	return p
}

func (p *process) close(ctx context.Context) error {
	_, err := p.wheel.Stop(ctx)
	return errors.Join(
		p.locks.Close(ctx), p.limits.Close(ctx), p.semaphores.Close(ctx), p.delays.Close(ctx), p.renewer.Close(ctx), err)
}

// families returns what a scrape finds, by name.
func (p *process) families(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	gathered, err := p.registry.Gather()
	require.NoError(t, err)
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range gathered {
		byName[f.GetName()] = f
	}
	return byName
}

// values returns the values of gauges and counters, and the counts of histograms, by name and outcome, shadow or kind.
func (p *process) values(t *testing.T) map[string]float64 {
	t.Helper()
	values := make(map[string]float64)
	for name, f := range p.families(t) {
		for _, m := range f.GetMetric() {
			name := name
			if len(f.GetMetric()) > 1 {
				require.Contains(t, []string{"outcome", "shadow", "kind"}, m.GetLabel()[1].GetName(), name)
				name += " " + m.GetLabel()[1].GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// use holds a lock that two calls wait for and one has been refused, two of three permits, for which a call
// waits, a limit that allowed a call, denied one, and lets one wait, and a limit with WithShadow that would have denied
// two more. It serves a queue with one worker, which runs a task until Close; another task was cancelled, and a
// third is pending.
func (p *process) use(t *testing.T) {
	t.Helper()
	ctx, name := t.Context(), redistest.Name(t)
	mutex := p.locks.Mutex(name)
	_, err := mutex.Lock(ctx)
	require.NoError(t, err)
	_, err = mutex.TryLock(ctx)
	require.ErrorIs(t, err, redislock.ErrLocked)
	for range 2 {
		mutex.LockFunc(ctx, func(*redislock.Lock, error) {})
	}

	permits := p.semaphores.Semaphore(name+":permits", 0)
	require.NoError(t, permits.SetPermits(ctx, 3))
	_, err = permits.Acquire(ctx, 2)
	require.NoError(t, err)
	permits.AcquireFunc(ctx, 3, func(*semaphore.Grant, error) {})

	limit := p.limits.Limiter(name, ratelimit.PerHour(1))
	for _, allowed := range []bool{true, false} {
		r, err := limit.Allow(ctx, "key")
		require.NoError(t, err)
		require.Equal(t, allowed, r.Allowed)
	}
	limit.WaitFunc(ctx, "key", 1, func(error) {})
	tried := p.limits.Limiter(name+":tried", ratelimit.PerHour(1), ratelimit.WithShadow())
	for range 2 {
		r, err := tried.AllowUpTo(ctx, "key", 2)
		require.NoError(t, err)
		require.True(t, r.WouldDeny)
	}
	require.NoError(t, tried.Wait(ctx, "key"))

	tasks := p.delays.Queue(name + ":tasks")
	require.NoError(t, tasks.Schedule(ctx, "runs", 0, nil))
	require.NoError(t, tasks.Schedule(ctx, "waits", time.Hour, nil))
	require.NoError(t, tasks.Schedule(ctx, "never", time.Hour, nil))
	cancelled, err := tasks.Cancel(ctx, "never")
	require.NoError(t, err)
	require.True(t, cancelled)
	runs := make(chan struct{})
	go func() {
		_ = tasks.Serve(context.WithoutCancel(ctx), 1, func(ctx context.Context, _ *delay.Task) error {
			close(runs)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-runs

	leases, err := p.renewer.Destination(backend{})
	require.NoError(t, err)
	_, err = leases.Add(renewal.Spec{Key: name, ID: "1", TTL: time.Hour, SentAt: time.Now()})
	require.NoError(t, err)
}

type backend struct{}

func (backend) Renew(context.Context, *renewal.Batch) error { return nil }

func TestCollectors_ExportTheStats(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.use(t)
	redistest.Poll(t, func() bool { return p.semaphores.Stats().Contended == 1 && p.locks.Stats().Contended >= 2 })
	calls := p.limits.Stats().Took.Count() // the call that waits may ask again at any time
	got := p.values(t)
	require.GreaterOrEqual(t, got["cogwheel_ratelimit_call_seconds"], float64(calls))
	require.LessOrEqual(t, got["cogwheel_ratelimit_call_seconds"], float64(p.limits.Stats().Took.Count()))
	for name, want := range map[string]float64{
		"cogwheel_redislock_held":           1,
		"cogwheel_redislock_waiting":        2,
		"cogwheel_redislock_acquired_total": 1,

		"cogwheel_redislock_failed_total contended": 1,
		"cogwheel_redislock_failed_total cancelled": 0,
		"cogwheel_redislock_failed_total failed":    0,

		"cogwheel_redislock_wait_seconds": 1,
		"cogwheel_redislock_hold_seconds": 0,
		"cogwheel_redislock_lost_total":   0,

		"cogwheel_redislock_renewal_leases": 1,

		"cogwheel_semaphore_held_permits":    2,
		"cogwheel_semaphore_grants":          1,
		"cogwheel_semaphore_waiting":         1,
		"cogwheel_semaphore_acquired_total":  1,
		"cogwheel_semaphore_contended_total": 1,

		"cogwheel_ratelimit_allowed_total": 2,
		"cogwheel_ratelimit_waiting":       1,
		"cogwheel_ratelimit_keys":          2,
		"cogwheel_ratelimit_breaker_open":  0,

		"cogwheel_ratelimit_denied_total false": 1,
		"cogwheel_ratelimit_denied_total true":  2,

		"cogwheel_delay_serving":                      1,
		"cogwheel_delay_running":                      1,
		"cogwheel_delay_claimed":                      1,
		"cogwheel_delay_paused":                       0,
		"cogwheel_delay_oldest_overdue_seconds":       0,
		"cogwheel_delay_scheduled_total":              3,
		"cogwheel_delay_cancelled_total":              1,
		"cogwheel_delay_attempts_total done":          0,
		"cogwheel_delay_lateness_seconds":             1,
		"cogwheel_delay_attempt_seconds":              0,
		"cogwheel_delay_renewal_leases":               1,
		"cogwheel_delay_last_error_timestamp_seconds": 0,

		"cogwheel_renewal_leases": 1,
	} {
		require.Contains(t, got, name)
		require.InDelta(t, want, got[name], 0, name)
	}
	require.Positive(t, got["cogwheel_wheel_pending_timers"])
}

func TestCollectors_GaugesAreZeroAfterClose(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.use(t)
	before := p.values(t)
	require.NoError(t, p.close(t.Context()))
	for name, f := range p.families(t) {
		value := f.GetMetric()[0].GetGauge().GetValue()
		if f.GetType() == dto.MetricType_GAUGE && name != "cogwheel_wheel_longest_callback_seconds" {
			require.Zero(t, value, name)
		}
	}
	for name, value := range p.values(t) {
		if f := p.families(t)[name]; f.GetType() != dto.MetricType_GAUGE {
			require.GreaterOrEqual(t, value, before[name], "%s: a counter never falls", name)
		}
	}
}

func TestCollectors_TellThatTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	p := newProcessOn(t, rdb)
	for range 3 {
		_, err := p.limits.Limiter("down", ratelimit.PerSecond(1)).Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	}
	got := p.values(t)
	require.InDelta(t, 1, got["cogwheel_ratelimit_breaker_open"], 0)
	require.InDelta(t, 3, got["cogwheel_ratelimit_degraded_total"], 0)
	require.InDelta(t, 3, got["cogwheel_ratelimit_failed_total failed"], 0)
}

func TestCollectors_TellOutcomesApart(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	name := redistest.Name(t)
	ended, end := context.WithCancel(t.Context())
	end()
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}

	mutex, permits := p.locks.Mutex(name), p.semaphores.Semaphore(name+":permits", 0)
	limit := p.limits.Limiter(name, ratelimit.PerHour(1))
	_, err := mutex.Lock(t.Context())
	require.NoError(t, err)
	require.NoError(t, permits.SetPermits(t.Context(), 1))
	_, err = permits.Acquire(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, limit.Wait(t.Context(), "key"))

	_, err = mutex.TryLock(t.Context()) // contended
	require.ErrorIs(t, err, redislock.ErrLocked)
	_, err = mutex.Lock(ended) // cancelled
	require.ErrorIs(t, err, context.Canceled)
	_, err = permits.TryAcquire(t.Context(), 1) // contended
	require.ErrorIs(t, err, semaphore.ErrNoPermits)
	_, err = permits.Acquire(ended, 1) // cancelled
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, limit.Wait(within(time.Minute), "key"), ratelimit.ErrWouldExceedDeadline) // cancelled
	_, err = mutex.Lock(within(time.Second))                                                     // contended, once Redis has answered
	require.ErrorIs(t, err, redislock.ErrLocked)
	_, err = permits.Acquire(within(30*time.Millisecond), 1) // cancelled
	require.ErrorIs(t, err, context.DeadlineExceeded)
	called := make(chan error, 1)
	mutex.LockFunc(t.Context(), func(_ *redislock.Lock, err error) { called <- err })() // cancelled
	require.ErrorIs(t, <-called, context.Canceled)
	_, err = p.locks.RWMutex(name + ":permits").TryLock(t.Context()) // failed
	require.ErrorIs(t, err, redislock.ErrWrongKind)
	_, err = p.semaphores.FairSemaphore(name, 0).TryAcquire(t.Context(), 1) // failed
	require.Error(t, err)
	_, err = p.limits.Limiter("other", ratelimit.PerHour(1)).AllowN(t.Context(), "key", 5) // failed
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)

	got := p.values(t)
	for name, want := range map[string]float64{
		"redislock_failed_total contended": 2, "redislock_failed_total cancelled": 2, "redislock_failed_total failed": 1,
		"semaphore_failed_total contended": 1, "semaphore_failed_total cancelled": 2, "semaphore_failed_total failed": 1,
		"ratelimit_failed_total cancelled": 1, "ratelimit_failed_total failed": 1,
	} {
		require.InDelta(t, want, got["cogwheel_"+name], 0, name)
	}
}

func TestCollectors_TellOutcomesOfAttemptsApart(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	tasks := p.delays.Queue(redistest.Name(t), delay.WithRetry(3, delay.Backoff(time.Millisecond, time.Millisecond)))
	served := make(chan error, 1)
	stopping := make(chan struct{})
	go func() {
		served <- tasks.Serve(ctx, 4, func(ctx context.Context, task *delay.Task) error {
			switch task.ID {
			case "fails":
				return errors.New("no stock")
			case "stays":
				close(stopping)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
	}()
	for _, id := range []string{"succeeds", "succeeds too", "fails", "stays"} {
		require.NoError(t, tasks.Schedule(t.Context(), id, 0, nil))
	}
	redistest.Poll(t, func() bool { s := p.delays.Stats(); return s.Done == 2 && s.Exhausted == 1 })
	<-stopping
	end()
	require.NoError(t, <-served)
	got := p.values(t)
	for outcome, want := range map[string]float64{"done": 2, "retried": 2, "exhausted": 1, "handed back": 1, "lost": 0} {
		require.InDelta(t, want, got["cogwheel_delay_attempts_total "+outcome], 0, outcome)
	}
	require.InDelta(t, 6, got["cogwheel_delay_lateness_seconds"], 0)
	require.InDelta(t, 6, got["cogwheel_delay_attempt_seconds"], 0)
}

// Handlers hang, tasks fail and too many have failed, and Redis loses a payload.
func TestCollectors_TellWhatBecomesOfTasks(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	tasks := p.delays.Queue(name, delay.WithMaxFailed(1), delay.WithRetry(1, delay.Backoff(time.Second, time.Second)))
	require.NoError(t, tasks.Schedule(t.Context(), "evicted", 0, []byte("payload")))
	require.NoError(t, rdb.Del(t.Context(), scripts.DelayKey(name, "tasks")).Err())
	release := make(chan struct{})
	defer close(release)
	go func() {
		_ = tasks.Serve(context.WithoutCancel(t.Context()), 1, func(_ context.Context, task *delay.Task) error {
			if task.ID == "hangs" {
				<-release
			}
			return errors.New("no stock")
		})
	}()
	for i := range 3 {
		require.NoError(t, tasks.Schedule(t.Context(), fmt.Sprint("fails ", i), 0, nil))
		redistest.Poll(t, func() bool { return p.delays.Stats().Exhausted == int64(i+1) })
	}
	redistest.Poll(t, func() bool { s := p.delays.Stats(); return s.Deleted == 2 && s.NoPayload == 1 })
	for _, id := range []string{"hangs", "waits"} {
		require.NoError(t, tasks.ScheduleAt(t.Context(), id, time.Now().Add(-time.Hour), nil))
	}
	redistest.Poll(t, func() bool { return p.delays.Stats().Overdue > time.Hour/2 })
	got := p.values(t)
	require.InDelta(t, 3600, got["cogwheel_delay_oldest_overdue_seconds"], redistest.Patience.Seconds())
	for kind, want := range map[string]float64{"deleted": 2, "no payload": 1, "lost too often": 0} {
		require.InDelta(t, want, got["cogwheel_delay_incidents_total "+kind], 0, kind)
	}
}

func TestCollectors_TellWhenTasksFailedLast(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	p := newProcessOn(t, rdb)
	began := time.Now()
	require.Error(t, p.delays.Queue("down").Schedule(t.Context(), "order-7", 0, nil))
	at := p.values(t)["cogwheel_delay_last_error_timestamp_seconds"]
	require.InDelta(t, float64(began.UnixMilli())/1000, at, redistest.Patience.Seconds())
	require.GreaterOrEqual(t, at, float64(began.UnixMilli())/1000)
}

func TestCollectors_AgeOfTheOldestHoldAndWait(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	for name, value := range p.values(t) {
		if strings.Contains(name, "oldest") {
			require.Zero(t, value, name)
		}
	}
	began := time.Now()
	p.use(t)
	redistest.Poll(t, func() bool { return p.semaphores.Stats().Contended == 1 && p.locks.Stats().Contended >= 2 })
	waited := time.Now()
	redistest.Poll(t, func() bool { return time.Since(waited) > 20*time.Millisecond })
	values := p.values(t)
	for _, metric := range []string{
		"redislock_oldest_hold", "redislock_oldest_wait", "semaphore_oldest_hold", "semaphore_oldest_wait",
	} {
		age := values["cogwheel_"+metric+"_seconds"]
		require.GreaterOrEqual(t, age, 0.02, metric)
		require.LessOrEqual(t, age, time.Since(began).Seconds(), metric)
	}
}

func TestCollectors_PassTheLinterOfPrometheus(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.use(t)
	problems, err := testutil.GatherAndLint(p.registry)
	require.NoError(t, err)
	require.Empty(t, problems)

	badly := prometheus.NewPedanticRegistry()
	badly.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "cogwheel_waited_milliseconds", Help: "Bad."}))
	problems, err = testutil.GatherAndLint(badly)
	require.NoError(t, err)
	require.NotEmpty(t, problems, "the linter finds a counter without _total and a unit that is no base unit")
}

// The number of series does not depend on names, keys or holders.
func TestCollectors_HaveTheLabelOfTheirObject(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.use(t)
	objects := map[string]string{"main": "wheel", "leases": "renewer", "orders": "client", "api": "client", "reports": "client", "tasks": "client"}
	for name, f := range p.families(t) {
		outcomes := make(map[string]bool)
		for _, m := range f.GetMetric() {
			labels := m.GetLabel()
			require.Equal(t, objects[labels[0].GetValue()], labels[0].GetName(), name)
			switch {
			case strings.HasSuffix(name, "_failed_total"), name == "cogwheel_delay_attempts_total":
				require.Len(t, labels, 2, name)
				require.Equal(t, "outcome", labels[1].GetName())
				outcomes[labels[1].GetValue()] = true
			case name == "cogwheel_ratelimit_denied_total":
				require.Len(t, labels, 2, name)
				require.Equal(t, "shadow", labels[1].GetName())
			case name == "cogwheel_delay_incidents_total":
				require.Len(t, labels, 2, name)
				require.Equal(t, "kind", labels[1].GetName())
			default:
				require.Len(t, labels, 1, name)
			}
		}
		if strings.HasSuffix(name, "_failed_total") {
			require.True(t, outcomes["cancelled"] && outcomes["failed"], name)
			require.Equal(t, name != "cogwheel_ratelimit_failed_total", outcomes["contended"], name)
		}
	}
}

func TestCollectors_OfSeveralObjects(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	require.NoError(t, p.registry.Register(cogwheelprom.NewLockCollector("stock", p.locks)))
	var twice prometheus.AlreadyRegisteredError
	require.ErrorAs(t, p.registry.Register(cogwheelprom.NewLockCollector("stock", p.locks)), &twice)
	typed, err := wheel.NewTyped(func(int) {})
	require.NoError(t, err)
	require.NoError(t, p.registry.Register(cogwheelprom.NewWheelCollector("typed", typed)))
	keyed, err := wheel.NewKeyed(func(int, int) {})
	require.NoError(t, err)
	require.NoError(t, p.registry.Register(cogwheelprom.NewWheelCollector("keyed", keyed)))
	require.Len(t, p.families(t)["cogwheel_redislock_held"].GetMetric(), 2)
	require.Len(t, p.families(t)["cogwheel_wheel_pending_timers"].GetMetric(), 3)
	require.Panics(t, func() { cogwheelprom.NewLockCollector("none", (*redislock.Client)(nil)) })
}

func TestCollectors_HistogramsHaveTheBucketsOfTheWheel(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	fired := make(chan struct{}, 10)
	for i := range 10 {
		_, err := p.wheel.AfterFunc(time.Duration(i)*time.Millisecond, func() { fired <- struct{}{} })
		require.NoError(t, err)
	}
	for range 10 {
		<-fired
	}
	lateness := p.wheel.Stats().Lateness
	h := p.families(t)["cogwheel_wheel_lateness_seconds"].GetMetric()[0].GetHistogram()
	require.EqualValues(t, 10, h.GetSampleCount())
	require.InDelta(t, lateness.Seconds(), h.GetSampleSum(), 0)
	require.Len(t, h.GetBucket(), 14)
	want := make(map[float64]uint64)
	for upper, count := range lateness.Buckets() {
		want[upper.Seconds()] = count
	}
	for _, b := range h.GetBucket() {
		require.Contains(t, want, b.GetUpperBound())
		require.Equal(t, want[b.GetUpperBound()], b.GetCumulativeCount())
	}
	require.InDelta(t, 0.000064, h.GetBucket()[0].GetUpperBound(), 0)
	require.InDelta(t, 4294.967296, h.GetBucket()[13].GetUpperBound(), 0)
}

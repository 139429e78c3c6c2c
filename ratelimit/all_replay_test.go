package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// together decides a request for several limits.
type together func(ctx context.Context, c *ratelimit.Client, parts ...ratelimit.Part) (ratelimit.Result, error)

// inOneStep is what is tested.
func inOneStep(ctx context.Context, c *ratelimit.Client, parts ...ratelimit.Part) (ratelimit.Result, error) {
	return c.All(parts...).Allow(ctx)
}

// oneAfterTheOther is the negative control: what the first limits have granted stays charged when a later one
// denies.
func oneAfterTheOther(ctx context.Context, c *ratelimit.Client, parts ...ratelimit.Part) (r ratelimit.Result, err error) {
	for _, p := range parts {
		if r, err = c.All(p).Allow(ctx); err != nil || !r.Allowed {
			return r, err
		}
	}
	return r, nil
}

// tenants are four users of two services, whose requests come from several processes at once.
type tenants struct {
	name             string
	user, service    ratelimit.Limit
	clients          []*ratelimit.Client
	granted          map[string][]oracle.Grant // to each user, and to each service
	failed           int
	users, serviceOf []string
}

func newTenants(t *testing.T, user, service ratelimit.Limit, opts ...func(*redis.Options)) *tenants {
	t.Helper()
	m := &tenants{
		name: redistest.Name(t), user: user, service: service, granted: map[string][]oracle.Grant{},
		users: []string{"ada", "bob", "cem", "dia"}, serviceOf: []string{"mail", "mail", "mail", "maps"},
	}
	for range 4 {
		m.clients = append(m.clients, newClient(t, redistest.Shared(t).Client(t, opts...)))
	}
	return m
}

func (m *tenants) windows(c *ratelimit.Client) *ratelimit.Limiter {
	return c.Limiter("service", m.service, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
}

func (m *tenants) limiter(c *ratelimit.Client, service string) *ratelimit.Limiter {
	return c.Limiter("user", m.user, ratelimit.WithHashTag(m.name+service))
}

// run has each client ask for each user until stop returns true.
func (m *tenants) run(t *testing.T, decide together, stop func(asked int) bool) {
	t.Helper()
	var mu sync.Mutex
	var running sync.WaitGroup
	w := newWheel(t)
	for _, c := range m.clients {
		for at, user := range m.users {
			service := m.serviceOf[at]
			running.Go(func() {
				for asked := 0; !stop(asked); asked++ {
					call := time.Now()
					r, err := decide(t.Context(), c, m.limiter(c, service).Part(user), m.windows(c).Part(m.name+service))
					mu.Lock()
					switch {
					case err != nil:
						m.failed++
					case r.Allowed:
						g := oracle.Between(call, time.Now(), 1)
						m.granted[user], m.granted[service] = append(m.granted[user], g), append(m.granted[service], g)
					}
					mu.Unlock()
					_ = w.Sleep(t.Context(), min(r.RetryAfter, 5*time.Millisecond))
				}
			})
		}
	}
	running.Wait()
}

// used is what stands charged, of each user and of each service.
func (m *tenants) used(t *testing.T) map[string]int {
	t.Helper()
	used := map[string]int{}
	c := newClient(t, redistest.Shared(t).Client(t))
	for at, user := range m.users {
		r, err := m.limiter(c, m.serviceOf[at]).Peek(t.Context(), user)
		require.NoError(t, err)
		used[user] = int(m.user.Burst - r.Remaining)
		r, err = m.windows(c).Peek(t.Context(), m.name+m.serviceOf[at])
		require.NoError(t, err)
		used[m.serviceOf[at]] = int(m.service.Burst - r.Remaining)
	}
	return used
}

// Processes that ask at once for the limits of users and of services that they share keep each of them in
// every window, and use up what they can.
// Guarantees: Q28.
func TestReplay_AllKeepsEveryLimit(t *testing.T) {
	t.Parallel()
	user, service := ratelimit.PerSecond(50).WithBurst(20), ratelimit.PerSecond(80)
	m := newTenants(t, user, service)
	end := time.Now().Add(1500 * time.Millisecond)
	m.run(t, inOneStep, func(int) bool { return !time.Now().Before(end) })
	require.Zero(t, m.failed)
	for _, name := range m.users {
		require.LessOrEqual(t, oracle.Excess(m.granted[name], oracle.Limit(user).BucketBound()), 0.0, name)
		require.NotEmpty(t, m.granted[name])
	}
	for _, name := range m.serviceOf {
		require.LessOrEqual(t, oracle.Excess(m.granted[name], oracle.Limit(service).WindowsBound()), 0.0, name)
	}
	require.GreaterOrEqual(t, len(m.granted["mail"]), 80, "the whole rate of the first second")
}

// Each request is charged to both limits or to none, by counts, also when replies are lost.
// Guarantees: Q28.
func TestReplay_AllChargesAllOrNone(t *testing.T) {
	t.Parallel()
	hourly := func(t *testing.T, decide together, opts ...func(*redis.Options)) *tenants {
		m := newTenants(t, ratelimit.PerHour(30), ratelimit.PerHour(70), opts...)
		m.run(t, decide, func(asked int) bool { return asked == 15 })
		return m
	}
	t.Run("what was granted is what was charged", func(t *testing.T) {
		t.Parallel()
		m := hourly(t, inOneStep)
		require.Zero(t, m.failed)
		used := m.used(t)
		for name, n := range used {
			require.Equal(t, len(m.granted[name]), n, name)
		}
		require.Equal(t, 70, used["mail"])
		require.Equal(t, 30, used["dia"])
	})
	t.Run("a lost reply charges all or none", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		var lost []<-chan struct{}
		for i := range 20 {
			lost = append(lost, d.LoseReply("evalsha", 10+5*i, redistest.Cut))
		}
		m := hourly(t, inOneStep, func(o *redis.Options) { o.Dialer = d.Dial })
		<-lost[0]
		used := m.used(t)
		require.Equal(t, used["mail"], used["ada"]+used["bob"]+used["cem"])
		require.Equal(t, used["maps"], used["dia"])
		require.LessOrEqual(t, len(m.granted["mail"]), used["mail"])
	})
	t.Run("the check finds one that charges one after the other", func(t *testing.T) {
		t.Parallel()
		m := hourly(t, oneAfterTheOther)
		used := m.used(t)
		require.Greater(t, used["ada"]+used["bob"]+used["cem"], len(m.granted["mail"]))
	})
}

// Callers that ask at once share scripts, and each of them is told what it was granted.
// Guarantees: Q28.
func TestAll_ConcurrentCallersShareScripts(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	all, left := combine(t, c, name, 1000, 1000, 100)
	var mu sync.Mutex
	var running sync.WaitGroup
	granted, failures := int64(0), []error{}
	sent := trips.trips(func() {
		for range 200 {
			running.Go(func() {
				r, err := all.AllowN(t.Context(), 1)
				mu.Lock()
				defer mu.Unlock()
				granted += r.Granted
				failures = append(failures, err)
			})
		}
		running.Wait()
	})
	require.NoError(t, errors.Join(failures...))
	require.EqualValues(t, 100, granted)
	require.Equal(t, [3]int64{900, 900, 0}, left())
	require.Less(t, sent, int64(100), fmt.Sprint("200 callers in ", sent, " round trips"))
}

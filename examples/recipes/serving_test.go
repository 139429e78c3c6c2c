package recipes_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestPerTenant_FollowsThePlan(t *testing.T) {
	t.Parallel()
	limits, err := ratelimit.New(redistest.Start(t).Client(t), ratelimit.WithTimeout(time.Minute)) // for slow machines
	require.NoError(t, err)
	plans := map[string]ratelimit.Limit{"free": ratelimit.PerHour(1), "paid": ratelimit.PerHour(3)}
	h := recipes.PerTenant(
		limits.Limiter("api", ratelimit.PerHour(1)),
		func(r *http.Request) (string, ratelimit.Limit) {
			tenant := r.Header.Get("Tenant")
			return tenant, plans[tenant]
		},
	)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func(tenant string) *http.Response {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Tenant", tenant)
		h.ServeHTTP(w, r)
		return w.Result()
	}
	for tenant, limit := range map[string]int{"free": 1, "paid": 3} {
		for range limit {
			require.Equal(t, http.StatusOK, ask(tenant).StatusCode, tenant)
		}
		denied := ask(tenant)
		require.Equal(t, http.StatusTooManyRequests, denied.StatusCode, tenant)
		require.NotEmpty(t, denied.Header.Get("Retry-After"))
		require.Contains(t, denied.Header.Get("RateLimit"), "r=0")
	}
	require.NoError(t, limits.Close(t.Context()))
	failed := ask("free")
	require.Equal(t, http.StatusServiceUnavailable, failed.StatusCode)
	require.Equal(t, "1", failed.Header.Get("Retry-After"))
}

func TestPerTenant_LooksTheTenantUpOnce(t *testing.T) {
	t.Parallel()
	limits, err := ratelimit.New(redistest.Start(t).Client(t), ratelimit.WithTimeout(time.Minute)) // for slow machines
	require.NoError(t, err)
	defer limits.Close(context.Background())
	lookups := 0
	h := recipes.PerTenant(
		limits.Limiter("api", ratelimit.PerHour(1)),
		func(*http.Request) (string, ratelimit.Limit) { lookups++; return "ada", ratelimit.PerHour(1) },
	)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		lookups = 0
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, want, w.Code)
		require.Equal(t, 1, lookups)
	}
}

func TestCloseWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		here, there := net.Pipe()
		began := time.Now()
		conn, err := recipes.CloseWhenIdle(w, here, time.Minute)
		require.NoError(t, err)
		go func() {
			for range 3 {
				time.Sleep(50 * time.Second)
				_, _ = there.Write([]byte("x"))
			}
		}()
		read, err := io.ReadAll(conn)
		require.ErrorIs(t, err, io.ErrClosedPipe)
		require.Len(t, read, 3, "a connection in use stays open")
		require.InDelta(t, 210, time.Since(began).Seconds(), 1, "a minute after the last byte")

		here, _ = net.Pipe()
		conn, err = recipes.CloseWhenIdle(w, here, time.Minute)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Zero(t, w.Len())
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}

func TestServe_ClosesIdleConnectionsAtLast(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	idle, other := net.Pipe() // a connection beside the server
	_, err = recipes.CloseWhenIdle(w, idle, time.Hour)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stop() }),
	}
	ended := make(chan error, 1)
	go func() { ended <- recipes.Serve(ctx, server, listener, w) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err, "a request that runs at the stop may end")
	require.NoError(t, response.Body.Close())
	require.NoError(t, <-ended)
	_, err = other.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the idle connection is closed")
}

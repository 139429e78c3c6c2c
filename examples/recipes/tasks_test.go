package recipes_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// process returns a client, as another process would have it.
func process(t *testing.T, server *cogwheeltest.Server) *delay.Client {
	t.Helper()
	delays, err := delay.New(server.NewClient(), delay.WithWheel(server.Wheel()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, delays.Close(context.Background())) })
	return delays
}

// serving calls serve until the test ends.
func serving(t *testing.T, serve func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// orders is a database of the table orders. It is a connector, a driver and a connection.
type orders struct {
	mu     sync.Mutex
	states map[string]string // by id
	tokens map[string]int64
}

func (o *orders) Connect(context.Context) (driver.Conn, error) { return o, nil }
func (o *orders) Driver() driver.Driver                        { return o }
func (o *orders) Open(string) (driver.Conn, error)             { return o, nil }
func (o *orders) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (o *orders) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (o *orders) Close() error                                 { return nil }

func (o *orders) ExecContext(_ context.Context, sql string, args []driver.NamedValue) (driver.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := args[0].Value.(string)
	switch {
	case strings.HasPrefix(sql, "INSERT") && o.states[id] == "":
		o.states[id] = "open"
	case strings.Contains(sql, "'paid'") && o.states[id] == "open":
		o.states[id] = "paid"
	case strings.Contains(sql, "'closed'") && o.states[id] == "open" && o.tokens[id] < args[1].Value.(int64):
		o.states[id], o.tokens[id] = "closed", args[1].Value.(int64)
	default:
		return driver.RowsAffected(0), nil
	}
	return driver.RowsAffected(1), nil
}

func (o *orders) state(id string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.states[id]
}

func TestOrders_CloseUnlessTheyArePaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		table := &orders{states: map[string]string{}, tokens: map[string]int64{}}
		db := sql.OpenDB(table)
		defer db.Close()
		first, ctx := process(t, server), t.Context()
		for _, id := range []string{"7", "8"} {
			require.NoError(t, recipes.TakeOrder(ctx, first.Queue("orders"), db, id))
		}
		paid, err := recipes.PayOrder(ctx, first.Queue("orders"), db, "8")
		require.True(t, paid && err == nil)
		require.NoError(t, first.Close(ctx)) // the process ends

		second := process(t, server).Queue("orders")
		serving(t, func(ctx context.Context) error { return recipes.CloseOrders(ctx, second, db) })
		time.Sleep(30*time.Minute - time.Second)
		require.Equal(t, "open", table.state("7"))
		time.Sleep(2 * time.Second)
		require.Equal(t, "closed", table.state("7"))
		require.Equal(t, "paid", table.state("8"))
		paid, err = recipes.PayOrder(ctx, second, db, "7")
		require.True(t, !paid && err == nil)
	})
}

// Guarantees: D14.
func TestChanged_IsSavedOnceForAllProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		processes := []*delay.Queue{process(t, server).Queue("saves"), process(t, server).Queue("saves")}
		began := time.Now()
		saved := make(chan string, 100)
		for _, saves := range processes {
			serving(t, func(ctx context.Context) error {
				return saves.Serve(ctx, 1, func(_ context.Context, task *delay.Task) error {
					saved <- fmt.Sprintf("%v: %s %s", time.Since(began).Round(100*time.Millisecond), task.ID, task.Payload)
					return nil
				})
			})
		}
		for i := range 15 { // to 21 s
			require.NoError(t, recipes.Changed(t.Context(), processes[i%2], "notes", fmt.Append(nil, i)))
			time.Sleep(1500 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		require.Equal(t, "10s: notes 6", <-saved)
		require.Equal(t, "20.5s: notes 13", <-saved)
		require.Equal(t, "23s: notes 14", <-saved)
		require.Empty(t, saved)
	})
}

// receiver answers the requests of a client.
type receiver func(*http.Request) (status int)

func (r receiver) RoundTrip(request *http.Request) (*http.Response, error) {
	status := r(request)
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Body: io.NopCloser(strings.NewReader("")), Request: request,
	}, nil
}

func TestWebhooks_AreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		webhooks := recipes.Webhooks(process(t, server))
		var mu sync.Mutex
		attempts, down := map[string]int{}, true
		client := &http.Client{Transport: receiver(func(r *http.Request) int {
			mu.Lock()
			defer mu.Unlock()
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "paid" || r.URL.String() != "https://receiver/" {
				t.Errorf("%s to %s: %v", body, r.URL, err)
			}
			id := r.Header.Get("Idempotency-Key")
			attempts[id]++
			if id == "payment-7" && attempts[id] < 4 || id == "payment-8" && down {
				return http.StatusBadGateway
			}
			return http.StatusOK
		})}
		serving(t, func(ctx context.Context) error { return webhooks.Serve(ctx, 4, recipes.Deliver(client)) })
		for _, id := range []string{"payment-7", "payment-8"} {
			hook := recipes.Webhook{URL: "https://receiver/", Body: []byte("paid")}
			require.NoError(t, recipes.SendWebhook(t.Context(), webhooks, id, hook))
		}
		time.Sleep(2 * time.Hour)
		mu.Lock()
		require.Equal(t, map[string]int{"payment-7": 4, "payment-8": 10}, attempts)
		down = false
		mu.Unlock()
		retried, err := webhooks.RetryFailed(t.Context(), "payment-8")
		require.NoError(t, err)
		require.True(t, retried)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"payment-7": 4, "payment-8": 11}, attempts)
		state, err := webhooks.State(t.Context(), "payment-8")
		require.NoError(t, err)
		require.Equal(t, delay.PhaseUnknown, state.Phase)
	})
}

// Three processes register the task. Runs that fail are repeated, and the process of one is cut off from Redis.
func TestPeriodic_RunsOnceInAllProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		began := time.Now()
		var mu sync.Mutex
		var runs []string
		var isolated *redis.Client
		for range 3 {
			rdb := server.NewClient()
			delays, err := delay.New(rdb, delay.WithWheel(server.Wheel()))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, delays.Close(context.Background())) })
			tasks := delays.Queue("periodic")
			require.NoError(t, recipes.Register(t.Context(), tasks, "report", minutely))
			job := func(ctx context.Context) error {
				mu.Lock()
				runs = append(runs, time.Since(began).Round(time.Second).String())
				n := len(runs)
				mu.Unlock()
				switch n {
				case 2:
					return errors.New("failed")
				case 4:
					isolated = rdb
					server.Isolate(rdb)
					<-ctx.Done()
					return ctx.Err()
				case 6:
					server.Rejoin(isolated)
				}
				return nil
			}
			serving(t, func(ctx context.Context) error {
				return tasks.Serve(ctx, 1, recipes.Periodic(tasks, minutely, job))
			})
		}
		time.Sleep(5*time.Minute + 50*time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{"1m0s", "2m0s", "2m1s", "3m0s", "3m31s", "4m0s", "5m0s"}, runs)
	})
}

// SIGTERM comes while a job runs, which ends well, and another process goes on.
func TestPeriodic_ARunThatSucceedsAfterSIGTERMIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		first, second := process(t, server).Queue("periodic"), process(t, server).Queue("periodic")
		began, runs := time.Now(), make(chan string, 10)
		require.NoError(t, recipes.Register(t.Context(), first, "report", minutely))
		ctx, sigterm := context.WithCancel(t.Context())
		serve := func(ctx context.Context, tasks *delay.Queue) error {
			return tasks.Serve(ctx, 1, recipes.Periodic(tasks, minutely, func(context.Context) error {
				runs <- time.Since(began).Round(time.Second).String()
				sigterm() // to the first process
				time.Sleep(3 * time.Second)
				return nil
			}))
		}
		require.NoError(t, serve(ctx, first))
		serving(t, func(ctx context.Context) error { return serve(ctx, second) })
		time.Sleep(2 * time.Minute)
		require.Equal(t, "1m0s", <-runs)
		require.Equal(t, "2m0s", <-runs)
		require.Equal(t, "3m0s", <-runs)
		require.Empty(t, runs)
	})
}

func TestPeriodic_EndsWithItsRule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tasks := process(t, cogwheeltest.Start(t)).Queue("periodic")
		began, runs := time.Now(), make(chan struct{}, 10)
		once := wheel.ScheduleFunc(func(prev time.Time) time.Time {
			if prev.After(began) {
				return time.Time{}
			}
			return began.Add(time.Minute)
		})
		require.NoError(t, recipes.Register(t.Context(), tasks, "report", once))
		serving(t, func(ctx context.Context) error {
			return tasks.Serve(ctx, 1, recipes.Periodic(tasks, once, func(context.Context) error {
				runs <- struct{}{}
				return nil
			}))
		})
		time.Sleep(10 * time.Minute)
		require.Len(t, runs, 1)
		state, err := tasks.State(t.Context(), "report")
		require.NoError(t, err)
		require.Equal(t, delay.PhaseUnknown, state.Phase)
	})
}

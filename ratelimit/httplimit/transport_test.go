package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// waiter is a limiter.
type waiter func(ctx context.Context, key string) error

func (f waiter) WaitN(ctx context.Context, key string, _ int64) error { return f(ctx, key) }

func unlimited(context.Context, string) error { return nil }

func byHost(r *http.Request) (string, bool) { return r.URL.Host, r.URL.Host != "free" }

// answer is a response.
func answer(status int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

func send(ctx context.Context, rt http.RoundTripper, host string, body io.Reader) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+host+"/", body)
	if err != nil {
		return 0, err
	}
	res, err := rt.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// A response that asks for a pause delays later requests of its key, and no others.
func TestTransport_HeedsRetryAfter(t *testing.T) {
	t.Parallel()
	date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for what, c := range map[string]struct {
		response func() *http.Response
		pause    time.Duration
	}{
		"seconds": {func() *http.Response { return answer(429, "Retry-After", "7") }, 7 * time.Second},
		"of 503":  {func() *http.Response { return answer(503, "Retry-After", "7") }, 7 * time.Second},
		"a date":  {func() *http.Response { return answer(429, "Retry-After", date(9*time.Second)) }, 9 * time.Second},
		"a date of a clock that is a day ahead": {func() *http.Response {
			return answer(429, "Date", date(24*time.Hour), "Retry-After", date(24*time.Hour+5*time.Second))
		}, 5 * time.Second},
		"a date that has passed":   {func() *http.Response { return answer(429, "Retry-After", date(-time.Hour)) }, 0},
		"more than an hour":        {func() *http.Response { return answer(429, "Retry-After", "86400") }, time.Hour},
		"a date in ten years":      {func() *http.Response { return answer(429, "Retry-After", date(10*365*24*time.Hour)) }, time.Hour},
		"more than 64 bits":        {func() *http.Response { return answer(429, "Retry-After", "99999999999999999999") }, time.Hour},
		"less than nothing":        {func() *http.Response { return answer(429, "Retry-After", "-5") }, 0},
		"nonsense":                 {func() *http.Response { return answer(429, "Retry-After", "7 s") }, 0},
		"no field":                 {func() *http.Response { return answer(429) }, 0},
		"a status that is neither": {func() *http.Response { return answer(301, "Retry-After", "7") }, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(time.Second) // until the wheel of the bubble has ended
				next := c.response
				rt := httplimit.NewTransport(waiter(unlimited), byHost, roundTrip(func(*http.Request) (*http.Response, error) {
					res := next()
					next = func() *http.Response { return answer(200) }
					return res, nil
				}))
				first, err := send(t.Context(), rt, "a", nil)
				require.NoError(t, err)
				require.NotEqual(t, 200, first, "the caller gets the response")
				began := time.Now()
				_, err = send(t.Context(), rt, "b", nil)
				require.NoError(t, err)
				_, err = send(t.Context(), rt, "free", nil)
				require.NoError(t, err)
				require.Zero(t, time.Since(began), "another key")
				_, err = send(t.Context(), rt, "a", nil)
				require.NoError(t, err)
				require.InDelta(t, c.pause, time.Since(began), float64(time.Second-1), "a date has no fractions of seconds")
				began = time.Now()
				_, err = send(t.Context(), rt, "a", nil)
				require.NoError(t, err)
				require.Zero(t, time.Since(began), "the pause is over")
			})
		})
	}
}

// A wait is bounded by the context of its request.
func TestTransport_APauseEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Second) // until the wheel of the bubble has ended
		sent := 0
		rt := httplimit.NewTransport(waiter(unlimited), byHost, roundTrip(func(*http.Request) (*http.Response, error) {
			sent++
			return answer(429, "Retry-After", "60"), nil
		}))
		_, err := send(t.Context(), rt, "a", nil)
		require.NoError(t, err)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		body := &closing{Reader: strings.NewReader("x")}
		_, err = send(ctx, rt, "a", body)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		require.Zero(t, time.Since(began), "at once")
		require.True(t, body.closed)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = send(ctx, rt, "a", nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(began))
		client := http.Client{Transport: rt, Timeout: time.Second}
		_, err = client.Get("http://a/") //nolint:bodyclose,noctx // there is no response
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline, "the Timeout of a Client is a deadline")
		require.Equal(t, 1, sent)
	})
}

// closing is a body that knows whether it is closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// Requests that wait for permits when a pause begins are not sent together at its end.
func TestTransport_APauseKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Second) // until the wheel of the bubble has ended
		began := time.Now()
		var mu sync.Mutex
		var sent []time.Duration
		next := began
		aSecond := waiter(func(ctx context.Context, _ string) error {
			mu.Lock()
			if next = next.Add(time.Second); next.Before(time.Now()) {
				next = time.Now()
			}
			until := next
			mu.Unlock()
			select {
			case <-time.After(time.Until(until)):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		rt := httplimit.NewTransport(aSecond, byHost, roundTrip(func(*http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if sent = append(sent, time.Since(began)); len(sent) == 1 {
				return answer(503, "Retry-After", "20"), nil
			}
			return answer(200), nil
		}))
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := send(t.Context(), rt, "a", nil)
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Len(t, sent, 10)
		require.Equal(t, time.Second, sent[0])
		for i := 1; i < len(sent); i++ {
			require.GreaterOrEqual(t, sent[i], 21*time.Second)
			require.True(t, i == 1 || sent[i]-sent[i-1] >= time.Second, "%v", sent)
		}
	})
}

// A response that comes later and asks for a shorter pause does not end a longer one.
func TestTransport_TheLongestPauseCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Second) // until the wheel of the bubble has ended
		began, seconds := time.Now(), []string{"60", "5"}
		var sent atomic.Int64
		rt := httplimit.NewTransport(waiter(unlimited), byHost, roundTrip(func(*http.Request) (*http.Response, error) {
			n := int(sent.Add(1))
			if n > len(seconds) {
				return answer(200), nil
			}
			time.Sleep(time.Duration(n) * time.Second)
			return answer(429, "Retry-After", seconds[n-1]), nil
		}))
		var both sync.WaitGroup
		for range seconds {
			both.Go(func() {
				if _, err := send(t.Context(), rt, "a", nil); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		_, err := send(t.Context(), rt, "a", nil)
		require.NoError(t, err)
		require.Equal(t, 61*time.Second, time.Since(began))
	})
}

// Pauses that have ended are forgotten before the keys have doubled.
func TestTransport_PausesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(time.Second) // until the wheel of the bubble has ended
		seconds := "60"
		rt := httplimit.NewTransport(waiter(unlimited), byHost, roundTrip(func(*http.Request) (*http.Response, error) {
			return answer(429, "Retry-After", seconds), nil
		}))
		for i := range 100 {
			_, err := send(t.Context(), rt, strconv.Itoa(i), nil)
			require.NoError(t, err)
		}
		require.Equal(t, 100, httplimit.Pauses(rt))
		time.Sleep(time.Minute)
		for i := range 100 {
			_, err := send(t.Context(), rt, strconv.Itoa(100+i), nil)
			require.NoError(t, err)
		}
		require.Equal(t, 100, httplimit.Pauses(rt))
	})
}

func TestTransport_WaitsForALimiter(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	hour := c.Limiter("transport"+redistest.Name(t), ratelimit.PerHour(1))
	sent := 0
	rt := httplimit.NewTransport(hour, byHost, roundTrip(func(*http.Request) (*http.Response, error) {
		sent++
		return answer(200), nil
	}))
	_, err := send(t.Context(), rt, "a", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = send(ctx, rt, "a", nil)
	require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
	_, err = send(ctx, rt, "free", nil)
	require.NoError(t, err, "not limited")
	require.Equal(t, 2, sent)
	cancel()
	_, err = send(ctx, rt, "a", nil)
	require.ErrorIs(t, err, context.Canceled)

	broken := errors.New("no such host")
	rt = httplimit.NewTransport(waiter(unlimited), byHost, roundTrip(func(*http.Request) (*http.Response, error) { return nil, broken }))
	_, err = send(t.Context(), rt, "a", nil)
	require.Equal(t, broken, err, "an error of the connection is returned as it is")
	for _, f := range []func(){
		func() { httplimit.NewTransport(nil, byHost, nil) },
		func() { httplimit.NewTransport(hour, nil, nil) },
		func() { httplimit.NewTransport(c.Limiter("", ratelimit.Limit{}), byHost, nil) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				require.ErrorIs(t, err, cogwheel.ErrInvalid)
			}()
			f()
		}()
	}
}

// The idle connections of a Client are those of the RoundTripper behind it.
func TestTransport_ClosesIdleConnections(t *testing.T) {
	t.Parallel()
	next := &idle{}
	(&http.Client{Transport: httplimit.NewTransport(waiter(unlimited), byHost, next)}).CloseIdleConnections()
	require.True(t, next.closed)
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

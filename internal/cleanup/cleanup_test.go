package cleanup_test

import (
	"context"
	"io"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is what a Queue sends to: it notes when it got which releases, and answers as it is told.
type server struct {
	*cleanup.Queue[string]
	gate    gate.Gate
	began   time.Time
	answer  func(release string, n int) error // n counts what came for the release before
	mu      sync.Mutex
	got     map[string][]time.Duration
	batches []int
	refused []string
}

func newServer(t *testing.T, answer func(release string, n int) error) *server {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	s := &server{began: time.Now(), answer: answer, got: map[string][]time.Duration{}}
	s.Queue = cleanup.New(cleanup.Config[string]{
		Wheel: w, Gate: &s.gate, MaxBatch: 100, Send: s.send,
		Refused: func(release string, _ error) { s.refused = append(s.refused, release) },
		Failed:  func(error) {},
	})
	return s
}

func (s *server) send(_ context.Context, releases []string, done func(int, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, len(releases))
	for i, release := range releases {
		n := len(s.got[release])
		s.got[release] = append(s.got[release], time.Since(s.began).Round(10*time.Millisecond))
		go done(i, s.answer(release, n))
	}
}

// sent is when each release was sent, since the server began.
func (s *server) sent() map[string][]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.got)
}

func always(err error) func(string, int) error { return func(string, int) error { return err } }

func seconds(all ...float64) (d []time.Duration) {
	for _, s := range all {
		d = append(d, time.Duration(s*float64(time.Second)))
	}
	return d
}

func TestQueue_SendsWhen(t *testing.T) {
	lost := io.ErrUnexpectedEOF
	for what, tt := range map[string]struct {
		delay, lasts time.Duration
		ambiguous    bool
		answer       func(string, int) error
		want         []time.Duration
	}{
		"at once and once":                           {0, 30 * time.Second, false, always(nil), seconds(0)},
		"after its delay":                            {3 * time.Second, 30 * time.Second, false, always(nil), seconds(3)},
		"again after failures, until it has ended":   {0, 5 * time.Second, false, always(lost), seconds(0, .25, .75, 1.75, 3.75)},
		"again, at most every five seconds":          {0, 20 * time.Second, false, always(lost), seconds(0, .25, .75, 1.75, 3.75, 7.75, 12.75, 17.75)},
		"again after a success, against late copies": {0, time.Second, true, always(nil), seconds(0, 1, 3, 7, 15)},
		"not when it has ended before":               {3 * time.Second, time.Second, false, always(nil), nil},
		"not again when it was refused":              {0, 30 * time.Second, true, always(proto("NOPERM no")), seconds(0)},
		"again when it was refused for a while":      {0, 2 * time.Second, false, always(proto("LOADING Redis is loading the dataset in memory")), seconds(0, .25, .75, 1.75)},
		"after an outage of any length, and then against the copies": {
			0, time.Second, true, func(_ string, n int) error {
				if n < 10 {
					return lost
				}
				return nil
			}, seconds(0, .25, .75, 1.75, 3.75, 7.75, 12.75, 17.75, 22.75, 27.75, 32.75, 33.75, 35.75, 39.75),
		},
		"after an outage, and then against the copies": {
			0, time.Second, true, func(_ string, n int) error {
				if n < 3 {
					return lost
				}
				return nil
			}, seconds(0, .25, .75, 1.75, 2.75, 4.75, 8.75),
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, tt.answer)
				s.Add("it", tt.delay, tt.lasts, tt.ambiguous)
				time.Sleep(time.Minute)
				require.Equal(t, tt.want, s.sent()["it"])
			})
		})
	}
}

// proto is an answer of the server.
type proto string

func (p proto) Error() string { return string(p) }
func (p proto) RedisError()   {}

func TestQueue_ManyTravelTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, always(nil))
		for i := range 1000 {
			s.Add(string(rune('a'+i)), time.Second, time.Minute, false)
		}
		time.Sleep(2 * time.Second)
		require.Len(t, s.sent(), 1000)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Len(t, s.batches, 10)
	})
}

func TestQueue_Close(t *testing.T) {
	t.Run("sends what is not due, once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, always(nil))
			s.Add("a", time.Hour, 2*time.Hour, true)
			s.gate.Close()
			require.NoError(t, s.gate.Wait(t.Context()))
			failed, err := s.Close(t.Context())
			require.NoError(t, err)
			require.Zero(t, failed)
			time.Sleep(2 * time.Hour)
			require.Equal(t, seconds(0), s.sent()["a"])
		})
	})

	t.Run("tries again, and tells what is left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, func(release string, n int) error {
				if release == "dead" || release == "slow" && n < 2 {
					return io.ErrUnexpectedEOF
				}
				return nil
			})
			for _, release := range []string{"dead", "slow", "well"} {
				s.Add(release, time.Hour, 2*time.Hour, false)
			}
			s.Add("over", time.Hour, 0, false)
			time.Sleep(time.Second)
			s.gate.Close()
			failed, err := s.Close(t.Context())
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.Equal(t, 1, failed)
			require.Equal(t, seconds(1, 1.25, 1.5), s.sent()["slow"])
			require.Equal(t, seconds(1), s.sent()["well"])
			require.Empty(t, s.sent()["over"])
		})
	})

	t.Run("ends with its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, always(io.ErrUnexpectedEOF))
			s.Add("a", time.Hour, 2*time.Hour, false)
			s.gate.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			failed, err := s.Close(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 1, failed)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	})

	t.Run("is left what comes when the gate is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, always(nil))
			s.gate.Close()
			s.Add("a", 0, time.Minute, false)
			time.Sleep(time.Second)
			require.Empty(t, s.sent())
			_, err := s.Close(t.Context())
			require.NoError(t, err)
			require.Equal(t, seconds(1), s.sent()["a"])
		})
	})
}

// A wheel that is stopped, before a release or while it waits, delays none, and Close sends again what fails.
// Guarantees: L11, A4.
func TestQueue_OnAStoppedWheel(t *testing.T) {
	failsTwice := func(_ string, n int) error {
		if n < 2 {
			return io.EOF
		}
		return nil
	}
	stopped := func(t *testing.T, s *server) {
		_, err := s.Wheel.Stop(t.Context())
		require.NoError(t, err)
	}
	for name, run := range map[string]func(*testing.T, *server){
		"stopped before": func(t *testing.T, s *server) {
			stopped(t, s)
			s.Add("a", time.Second, time.Minute, false)
			time.Sleep(5 * time.Second)
		},
		"stopped while it waits": func(t *testing.T, s *server) {
			s.Add("a", time.Second, time.Minute, false)
			stopped(t, s)
			time.Sleep(5 * time.Second)
		},
		"closed": func(t *testing.T, s *server) {
			stopped(t, s)
			s.Add("a", time.Second, time.Minute, false)
			failed, err := s.Close(t.Context())
			require.Zero(t, failed)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, failsTwice)
				run(t, s)
				require.Len(t, s.sent()["a"], 3)
			})
		})
	}
}

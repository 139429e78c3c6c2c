package renewal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const ttl = 30 * time.Second

var errDown = errors.New("backend down")

// call is one call that a fakeBackend got.
type call struct {
	at   time.Time
	size int
}

// fakeBackend answers as its answer function says and records the calls. The function gets the number of the
// call, starting at 1.
type fakeBackend struct {
	answer func(ctx context.Context, n int, b *renewal.Batch) error

	mu       sync.Mutex
	calls    []call
	seen     map[renewal.Ref]int
	inFlight int
	most     int
}

func (f *fakeBackend) Renew(ctx context.Context, b *renewal.Batch) error {
	f.mu.Lock()
	f.calls = append(f.calls, call{time.Now(), len(b.Leases)})
	n := len(f.calls)
	if f.seen == nil {
		f.seen = make(map[renewal.Ref]int)
	}
	for _, ref := range b.Leases {
		f.seen[ref]++
	}
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.inFlight--
		f.mu.Unlock()
	}()
	return f.answer(ctx, n, b)
}

func (f *fakeBackend) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

// renewals is how many leases the calls carried.
func (f *fakeBackend) renewals() (n int) {
	for _, c := range f.history() {
		n += c.size
	}
	return n
}

func (f *fakeBackend) history() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]call(nil), f.calls...)
}

func all(o renewal.Outcome) func(context.Context, int, *renewal.Batch) error {
	return func(_ context.Context, _ int, b *renewal.Batch) error {
		for i := range b.Outcomes {
			b.Outcomes[i] = o
		}
		return nil
	}
}

func down(context.Context, int, *renewal.Batch) error { return errDown }

// hang waits for ctx, as a backend whose server does not answer.
func hang(ctx context.Context, _ int, _ *renewal.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// inBubble runs f in virtual time with a Renewer of its own.
func inBubble(t *testing.T, f func(t *testing.T, r *renewal.Renewer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		f(t, r)
		require.NoError(t, r.Close(t.Context()))
		require.Zero(t, r.Len())
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

func add(t *testing.T, r *renewal.Renewer, b renewal.Backend, spec renewal.Spec) *renewal.Lease {
	t.Helper()
	d, err := r.Destination(b)
	require.NoError(t, err)
	return addTo(t, d, spec)
}

func addTo(t *testing.T, d *renewal.Destination, spec renewal.Spec) *renewal.Lease {
	t.Helper()
	if spec.SentAt.IsZero() {
		spec.SentAt = time.Now()
	}
	l, err := d.Add(spec)
	require.NoError(t, err)
	return l
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

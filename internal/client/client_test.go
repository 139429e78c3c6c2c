package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) {
	redistest.Parallel(8) // most tests wait
	redistest.Main(m, redistest.DefaultWheel)
}

// unknown is a client whose nodes are not known: the embedded field has an unexported name.
type (
	hidden  redis.UniversalClient
	unknown struct{ hidden }
)

func newOptions(t *testing.T) *client.Options {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = w.Stop(context.Background()) })
	return &client.Options{Package: "p", Wheel: w, Logger: slog.New(slog.DiscardHandler), Endless: "it never ends"}
}

var errDial = errors.New("there is no server")

func newRDB(t *testing.T, readTimeout time.Duration) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		// No name: go-redis looks a name up, and two lookups of one name share a goroutine. In a synctest bubble
		// that is fatal.
		Addr:        "127.0.0.1:1",
		ReadTimeout: readTimeout, MaxRetries: 7, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errDial },
	})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb
}

func newLeases(t *testing.T, o *client.Options, g *gate.Gate) *client.Leases {
	t.Helper()
	l, err := client.NewLeases(o, newRDB(t, time.Second), g, 2, renewal.Hooks{})
	require.NoError(t, err)
	require.Equal(t, 7, l.Sender.Retries)
	return l
}

func TestNewRedis(t *testing.T) {
	t.Parallel()

	t.Run("refuses nil and a client without a ReadTimeout", func(t *testing.T) {
		t.Parallel()
		var none *redis.Client
		for _, rdb := range []redis.UniversalClient{nil, none} {
			_, err := client.NewRedis(newOptions(t), rdb, new(gate.Gate))
			require.EqualError(t, err, "p: client nil: must not be nil")
		}
		_, err := client.NewRedis(newOptions(t), newRDB(t, -1), new(gate.Gate))
		require.EqualError(t, err, "p: client without a ReadTimeout: it never ends")
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
	})

	t.Run("finds the client inside another, and takes one whose nodes are not known as it is", func(t *testing.T) {
		t.Parallel()
		rdb := newRDB(t, time.Second)
		for given, known := range map[redis.UniversalClient]bool{rdb: true, struct{ *redis.Client }{rdb}: true, unknown{rdb}: false} {
			r, err := client.NewRedis(newOptions(t), given, new(gate.Gate))
			require.NoError(t, err)
			require.Equal(t, given, r.Client)
			require.Equal(t, known, r.Known)
			if known {
				require.Same(t, rdb, r.Base)
			} else {
				require.Equal(t, given, r.Base)
			}
		}
	})
}

func TestLeases_Close(t *testing.T) {
	t.Parallel()

	t.Run("ends the renewals, then the connections", func(t *testing.T) {
		t.Parallel()
		o := newOptions(t)
		l := newLeases(t, o, new(gate.Gate))
		background := func() error {
			call := scripts.LockRenew.Call([]string{"k"}, "i", 1000)
			return l.Dedicated.RunBatch(t.Context(), time.Minute, []scripts.Call{call})[0].Err()
		}
		var then error
		spec := renewal.Spec{Key: "k", ID: "i", TTL: time.Minute, SentAt: o.Wheel.Now()}
		spec.OnLost = func(error) { then = background() }
		_, err := l.Renewer.Watch(spec)
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context(), nil, nil))
		require.ErrorIs(t, then, errDial, "the connections outlast the renewals")
		require.ErrorIs(t, background(), redis.ErrClosed)
		_, err = l.Renewer.Watch(spec)
		require.ErrorIs(t, err, renewal.ErrClosed)
	})

	t.Run("ends idle workers", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			o, g := newOptions(t), new(gate.Gate)
			l := newLeases(t, o, g)
			g.Workers.Go(func() {})
			synctest.Wait()
			require.Equal(t, 1, o.Wheel.Len(), "one is idle")
			require.NoError(t, l.Close(t.Context()))
			require.Zero(t, o.Wheel.Len())
		})
	})

	t.Run("adds the package to the errors of the steps before", func(t *testing.T) {
		t.Parallel()
		first, second := errors.New("first"), errors.New("second")
		err := newLeases(t, newOptions(t), new(gate.Gate)).Close(t.Context(), first, nil, second)
		require.EqualError(t, err, "p: close: first; second")
		require.ErrorIs(t, err, second)
	})
}

func TestLeases_CheckLease(t *testing.T) {
	t.Parallel()
	l := newLeases(t, newOptions(t), new(gate.Gate))
	require.NoError(t, l.CheckLease("lease", 10*time.Millisecond))
	require.NoError(t, l.CheckLease("lease", renewal.MaxTTL))
	for _, d := range []time.Duration{9 * time.Millisecond, renewal.MaxTTL + 1} {
		require.ErrorContains(t, l.CheckLease("lease", d), "must be 10ms (ten ticks of the wheel) to 8760h")
	}
	require.NoError(t, l.Close(t.Context()))
}

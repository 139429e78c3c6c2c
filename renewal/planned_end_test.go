package renewal_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A lease without renewal ends as planned: that is no problem of the operator's.
func TestWatch_ALeaseThatExpiresAsPlannedLogsNoWarning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(l *renewal.Lease)
		cause error
		warns bool
	}{
		"its time is over":      {func(*renewal.Lease) { time.Sleep(time.Minute) }, renewal.ErrExpired, false},
		"the backend lost it":   {func(l *renewal.Lease) { require.True(t, l.MarkLost()) }, renewal.ErrGone, true},
		"its time is prolonged": {func(l *renewal.Lease) { l.Prolong(time.Now(), time.Hour); time.Sleep(2 * time.Hour) }, renewal.ErrExpired, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := wheel.New()
				require.NoError(t, err)
				var log bytes.Buffer
				r, err := renewal.New(w, renewal.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				require.NoError(t, err)
				l, err := r.Watch(renewal.Spec{Key: "k", ID: "1", TTL: 10 * time.Second, SentAt: time.Now()})
				require.NoError(t, err)
				c.end(l)
				require.ErrorIs(t, l.Err(), c.cause)
				require.EqualValues(t, 1, r.Stats().Lost)
				require.Equal(t, c.warns, bytes.Contains(log.Bytes(), []byte("renewal: lease lost")), log.String())
				require.NoError(t, r.Close(t.Context()))
				_, err = w.Stop(context.Background())
				require.NoError(t, err)
			})
		})
	}
}

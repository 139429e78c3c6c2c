package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A user of Redis 7 may use no channels unless it is given some. Permits work without them.
// Guarantees: L42.
func TestSemaphores_WithoutRightsToChannels(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	user := server.User(t, "app", "~*", "+@all")
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			name := k.name
			c, watcher := newClient(t, server.Client(t, user)), newClient(t, rdb)
			s := k.newAny(c, name)
			switch k.name {
			case "counting":
				counted := c.CountingSemaphore(name)
				mustSetPermits(t, counted, 1)
				require.NoError(t, counted.AddPermits(t.Context(), 1))
				require.NoError(t, counted.AddPermits(t.Context(), -1))
			case "semaphore":
				mustSetPermits(t, c.Semaphore(name, 0), 1)
			default:
				mustSetPermits(t, c.FairSemaphore(name, 0), 1)
			}
			polling := newClient(t, server.Client(t, user), semaphore.WithPoll(300*time.Millisecond))
			other := k.newAny(polling, name)
			for range 10 {
				release, err := s.acquire(t.Context(), 1)
				require.NoError(t, err)
				require.NoError(t, release(t.Context()))
			}
			release, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			waiting := startCall(func() error {
				release, err := other.acquire(within(t, testTimeout), 1)
				if err != nil {
					return err
				}
				return release(context.Background())
			})
			poll(t, func() bool { return polling.Stats().Contended == 1 })
			require.NoError(t, release(t.Context()))
			require.NoError(t, waiting.wait(t))
			// Close sends what is to be released later.
			require.NoError(t, c.Close(t.Context()))
			require.NoError(t, polling.Close(t.Context()))
			require.EqualValues(t, 1, available(t, k.newAny(watcher, name)), "no release was repeated")
		})
	}
}

func TestCheck_SaysWhatAPolicyEvicts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1gb").Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru").Err())
	report, err := newClient(t, rdb).Check(t.Context())
	require.NoError(t, err)
	require.Contains(t, report.String(), "volatile-lru may evict tokens and the records of calls")
	report, err = newClient(t, rdb, semaphore.WithIdleExpiry(time.Hour)).Check(t.Context())
	require.NoError(t, err)
	require.Contains(t, report.String(), "volatile-lru may evict permits when")
}

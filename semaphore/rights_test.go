package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A user of Redis 7 has no channels unless it is given some. Its permits are counted as ever.
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
			s := k.open(c, name)
			switch k.name {
			case "counting":
				counted := c.Semaphore(name)
				set(t, counted, 1)
				require.NoError(t, counted.AddPermits(t.Context(), 1))
				require.NoError(t, counted.AddPermits(t.Context(), -1))
			case "leased":
				setLeased(t, c.Leased(name), 1)
			default:
				setLeased(t, c.FairLeased(name), 1)
			}
			other := k.open(newClient(t, server.Client(t, user)), name)
			for range 10 {
				back, err := s.take(t.Context(), 1)
				require.NoError(t, err)
				require.NoError(t, back(t.Context()))
			}
			back, err := s.take(t.Context(), 1)
			require.NoError(t, err)
			waiting := start(func() error {
				back, err := other.take(within(t, patience), 1)
				if err != nil {
					return err
				}
				return back(context.Background())
			})
			w := newWheel(t)
			require.NoError(t, w.Sleep(t.Context(), 100*time.Millisecond))
			require.NoError(t, back(t.Context()))
			require.NoError(t, waiting.wait(t))
			require.NoError(t, w.Sleep(t.Context(), 2*time.Second)) // for what would be repeated in the background
			require.EqualValues(t, 1, available(t, k.open(watcher, name)), "as many as there were")
		})
	}
}

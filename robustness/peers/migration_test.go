package peers_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
)

// A service of six processes goes over from a peer to this library while it runs. At first all processes are of the
// peer. Again and again one of them is replaced, and told to end or killed: the later, the more likely by one of
// this library, and at the end always. The names are never free for longer than a lease and a second.
// Guarantees: L56.
func TestProcesses_RollingMigration(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	const processes = 6
	for _, peer := range all {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			needs(t, peer)
			s := usual(t, redistest.Start(t), 2)
			s.Loops, s.RestMicros, s.Long = 1, 3000, 10
			f := newFleet(t)
			stalled := redistest.Stalls(t)
			var service []*worker
			for range processes {
				service = append(service, f.start(s.of(peer)))
			}
			f.await(time.Minute, func(counts map[string]count) bool { return counts[peer].holds > 0 })
			steps, pause := testsize.Of(15, 200), testsize.Of(200*time.Millisecond, 300*time.Millisecond)
			for i := range steps + processes {
				next := cogwheelLib
				if i < steps && rand.IntN(steps) > i {
					next = peer
				}
				old := service[i%processes]
				service[i%processes] = f.start(s.of(next))
				select {
				case <-service[i%processes].ready:
				case <-redistest.Within(t, redistest.Patience).Done():
					t.Fatal("a process of ", next, " does not begin")
				}
				if rand.IntN(4) == 0 {
					old.kill()
				} else {
					old.retire()
				}
				require.NoError(t, sleep(t.Context(), pause))
			}
			claims := f.judge()
			counts := f.counted()
			require.Positive(t, counts[cogwheelLib].holds)
			longest, after := longestPause(claims)
			t.Logf("%d holds: %+v; the longest pause was %v, after a hold of %s", len(claims), counts, longest, after.library)
			require.Less(t, longest, lease+time.Second+stalled(), after.String())
		})
	}
}

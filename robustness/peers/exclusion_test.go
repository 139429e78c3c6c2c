package peers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
)

// all are the peers.
var all = []string{bsmLib, redsyncLib, redisPyLib, node4Lib, node5Lib}

// lease is that of the holds of all libraries. A hold that ends early because a machine stands still is no failure.
const lease = 600 * time.Millisecond

// usual is a worker on a server with names of its own.
func usual(t *testing.T, server *redistest.Server, names int) setup {
	s := setup{
		Addr: server.Addr(), Loops: 2, LeaseMillis: lease.Milliseconds(), OverrunMillis: 60, HoldMicros: 2000,
		RetryMinMillis: 2, RetryMaxMillis: 20,
	}
	for range names {
		s.Names = append(s.Names, redistest.Name(t))
	}
	return s
}

func (s setup) of(library string) setup {
	s.Library = library
	return s
}

// Two processes of this library and two of a peer take the same names in turns. Some are killed while they hold one,
// some holds outlast several leases because they are extended, and some are released after their lease.
// Guarantees: L56.
func TestProcesses_ExcludePeersAndAreExcluded(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	for _, peer := range all {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			needs(t, peer)
			s := usual(t, redistest.Start(t), 3)
			s.Long, s.Overrun, s.Doomed = 10, 20, testsize.Of(30, 10)
			f := newFleet(t)
			for range 2 {
				f.start(s.of(cogwheelLib))
				f.start(s.of(peer))
			}
			holds, kills := testsize.Of(300, 10_000), testsize.Of(2, 20)
			f.await(5*time.Minute, func(counts map[string]count) bool {
				ours, theirs := counts[cogwheelLib], counts[peer]
				return ours.holds+theirs.holds >= holds && ours.kills >= kills && theirs.kills >= kills
			})
			claims := f.judge()
			t.Logf("%d holds: %+v", len(claims), f.counted())
		})
	}
}

// Control: the checker finds a release that does not compare.
func TestProcesses_ExcludePeers_Control(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	s := usual(t, redistest.Start(t), 1)
	s.Overrun = 300
	f := newFleet(t)
	for range 2 {
		f.start(s.of(cogwheelLib))
		f.start(s.of(carelessLib))
	}
	f.await(time.Minute, func(map[string]count) bool { return len(overlaps(f.claims)) > 0 })
	f.stop()
	require.NotEmpty(t, overlaps(f.claims))
	t.Logf("%+v: %d overlaps, %d holds lost", f.counted(), len(overlaps(f.claims)), len(f.losses))
}

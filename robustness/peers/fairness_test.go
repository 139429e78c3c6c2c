package peers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
)

// While two processes of this library and two of a peer want one name, and the peer retries every 20 to 250 ms, each
// side gets at least a fifth of the holds. Of a name that the callers of this library want all the time, from each
// other, they get at least a fifth too, however many of the peer want it. There the peer's share is not bounded: the
// name is free for moments only, and an attempt every 20 to 250 ms rarely meets one.
func TestProcesses_ShareWithPeers(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	for _, load := range []struct {
		name       string
		restMicros int64 // after holds of up to 10 ms
		bounded    []string
	}{
		{"now and then", 300_000, []string{"ours", "theirs"}},
		{"all the time", 5_000, []string{"ours"}},
	} {
		for _, peer := range all {
			t.Run(load.name+"/"+peer, func(t *testing.T) {
				t.Parallel()
				needs(t, peer)
				s := usual(t, redistest.Start(t), 1)
				s.RetryMinMillis, s.RetryMaxMillis, s.HoldMicros, s.RestMicros = 20, 250, 10_000, load.restMicros
				f := newFleet(t)
				for range 2 {
					f.start(s.of(peer))
					f.start(s.of(cogwheelLib))
				}
				enough := testsize.Of(100, 500)
				f.await(time.Minute, func(counts map[string]count) bool {
					return counts[cogwheelLib].holds+counts[peer].holds >= enough
				})
				f.judge()
				ours, theirs := f.counted()[cogwheelLib].holds, f.counted()[peer].holds
				t.Logf("%d of ours, %d of theirs", ours, theirs)
				shares := map[string]int{"ours": ours, "theirs": theirs}
				for _, side := range load.bounded {
					require.GreaterOrEqual(t, shares[side], (ours+theirs)/5, side)
				}
			})
		}
	}
}

package peers

import (
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
)

func TestFairness(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	for _, peer := range all {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			needs(t, peer)
			s := usual(t, redistest.Start(t), 1)
			s.RetryMinMillis, s.RetryMaxMillis, s.Loops = 20, 250, 4
			f := newFleet(t)
			for range 2 {
				f.start(s.of(cogwheelLib))
				f.start(s.of(peer))
			}
			time.Sleep(testsize.Of(4*time.Second, 20*time.Second))
			f.judge()
			t.Logf("%+v", f.counted())
		})
	}
}

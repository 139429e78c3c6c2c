package netty_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cogwheel-go/cogwheel/benchmarks/internal/netty"
)

func TestTimer_FiresEachTimeoutOnceAndNoCancelledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := netty.New(time.Millisecond, 8)
		var ran atomic.Int64
		start := time.Now()
		for k := range 1000 {
			d := time.Duration(k) * 100 * time.Microsecond
			timeout := w.NewTimeout(func() {
				if late := time.Since(start) - d; late < 0 || late > 2*time.Millisecond {
					t.Errorf("delay %v late by %v", d, late)
				}
				ran.Add(1)
			}, d)
			if k%2 == 1 && !timeout.Cancel() {
				t.Error("cancelled too late")
			}
		}
		time.Sleep(time.Second)
		w.Stop()
		if ran.Load() != 500 {
			t.Errorf("%d of 500 fired", ran.Load())
		}
	})
}

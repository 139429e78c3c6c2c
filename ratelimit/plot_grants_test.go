package ratelimit_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// TestPlot draws docs/ratelimit.svg, from grants of a real server, if RATELIMIT_PLOT names that file. Without
// it, it only checks what the picture shows. The demand is one request every 10 ms, with a pause from 1.3 s
// to 2.2 s.
func TestPlot(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const lasts = 4 * time.Second
	limit := ratelimit.PerSecond(10)
	c, _, _, name := shared(t)
	require.NoError(t, c.StoredLimiter(name).SetRate(t.Context(), limit))
	gcra, small := c.Limiter("gcra", limit), c.Limiter("small", limit.WithBurst(2))
	window := c.Limiter("window", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	sliding := c.Limiter("sliding", limit, bySliding)
	lines := []struct {
		label, colour string
		allow         func(context.Context) (ratelimit.Result, error)
		at            []time.Duration
	}{
		{label: "FixedWindow", colour: "#c0392b", allow: func(ctx context.Context) (ratelimit.Result, error) { return window.Allow(ctx, name) }},
		{label: "GCRA, burst 10", colour: "#2471a3", allow: func(ctx context.Context) (ratelimit.Result, error) { return gcra.Allow(ctx, name) }},
		{label: "GCRA, burst 2", colour: "#7fb3d5", allow: func(ctx context.Context) (ratelimit.Result, error) { return small.Allow(ctx, name) }},
		{label: "StoredLimiter (sliding log)", colour: "#1e8449", allow: c.StoredLimiter(name).Allow},
		{label: "SlidingWindow", colour: "#8e44ad", allow: func(ctx context.Context) (ratelimit.Result, error) { return sliding.Allow(ctx, name) }},
	}
	w := newWheel(t)
	began := time.Now()
	var all sync.WaitGroup
	for i := range lines {
		l := &lines[i]
		all.Go(func() {
			for d := time.Since(began); d < lasts; d = time.Since(began) {
				if d < 1300*time.Millisecond || d > 2200*time.Millisecond {
					if r, err := l.allow(t.Context()); err == nil && r.Allowed {
						l.at = append(l.at, d)
					}
				}
				_ = w.Sleep(t.Context(), 10*time.Millisecond) // the pace at which it asks
			}
		})
	}
	all.Wait()

	const width, height, most = 800.0, 360.0, 60.0
	x := func(d time.Duration) float64 { return 50 + width*float64(d)/float64(lasts) }
	y := func(n int) float64 { return 20 + height - height*float64(n)/most }
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 420" font-family="sans-serif" font-size="13">`+"\n")
	fmt.Fprintf(&svg, `<rect width="880" height="420" fill="white"/><rect x="%.0f" y="20" width="%.0f" height="%.0f" fill="#eee"/>`+"\n",
		x(1300*time.Millisecond), x(2200*time.Millisecond)-x(1300*time.Millisecond), height)
	for n := 0; n <= int(most); n += 10 {
		fmt.Fprintf(&svg, `<path d="M50 %.0fH850" stroke="#ccc"/><text x="20" y="%.0f">%d</text>`+"\n", y(n), y(n)+5, n)
	}
	for s := range 5 {
		fmt.Fprintf(&svg, `<text x="%.0f" y="400">%d s</text>`+"\n", x(time.Duration(s)*time.Second)-8, s)
	}
	for i, l := range lines {
		require.NotEmpty(t, l.at)
		fmt.Fprintf(&svg, `<path fill="none" stroke="%s" stroke-width="2" d="M%.0f %.0f`, l.colour, x(0), y(0))
		for n, at := range l.at {
			fmt.Fprintf(&svg, "H%.1fV%.1f", x(at), y(n+1))
		}
		fmt.Fprintf(&svg, `H%.0f"/><text x="70" y="%d" fill="%s">%s: %d</text>`+"\n", x(lasts), 45+20*i, l.colour, l.label, len(l.at))
	}
	svg.WriteString("</svg>\n")
	if file := os.Getenv("RATELIMIT_PLOT"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(svg.String()), 0o644))
	}
	for i, l := range lines[1:3] {
		may := oracle.Limit(limit).BucketBound()
		if i == 1 {
			may = oracle.Limit(limit.WithBurst(2)).BucketBound()
		}
		require.LessOrEqual(t, float64(len(l.at)), may(time.Since(began)))
	}
}

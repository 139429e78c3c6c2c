package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// isLimit reports whether a limit is in range, as its documentation words it.
func isLimit(l ratelimit.Limit, windows bool) bool {
	if l.Burst == 0 {
		l.Burst = l.Rate
	}
	within := l.Rate >= 1 && l.Rate <= ratelimit.MaxRate && l.Burst >= 1 && l.Burst <= ratelimit.MaxRate &&
		l.Per >= time.Microsecond && l.Per <= ratelimit.MaxPer
	if !within {
		return false
	}
	refill := new(big.Int).Mul(big.NewInt(int64(l.Per)), big.NewInt(l.Burst))
	refill.Quo(refill, big.NewInt(l.Rate))
	if refill.Cmp(big.NewInt(int64(100*365*24*time.Hour))) > 0 {
		return false
	}
	return !windows || l.Burst == l.Rate && l.Per%time.Millisecond == 0
}

// FuzzOptions makes clients and limits of arbitrary arguments. No server is needed.
func FuzzOptions(f *testing.F) {
	for which := range uint8(5) {
		for _, n := range []int64{
			0, -1, 1, 3, math.MaxInt64, math.MinInt64, math.MaxUint32, math.MaxUint32 + 1, 1 << 53, 999, 1000,
			int64(time.Millisecond), int64(time.Millisecond) - 1, int64(ratelimit.MaxPer), int64(ratelimit.MaxPer) + 1,
		} {
			f.Add(which, n, int64(time.Second), int64(5), "p")
			f.Add(which, int64(5), n, int64(5), "p")
			f.Add(which, int64(5), int64(time.Second), n, "p")
		}
		for _, text := range []string{"", "{", "}", "a{b}c", ":", "\x00", strings.Repeat("x", 1025)} {
			f.Add(which, int64(5), int64(time.Second), int64(5), text)
		}
	}
	w, err := wheel.New()
	require.NoError(f, err)
	server := &redistest.Replying{}
	server.Set(redistest.ServerError("NOPERM the call was sent"))
	rdb := server.Client(f)
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, which uint8, n, per, m int64, text string) {
		d, ctx := time.Duration(per), context.Background()
		opts := []ratelimit.Option{ratelimit.WithWheel(w)}
		inRange := true
		switch which % 5 {
		case 0:
			opts, inRange = append(opts, ratelimit.WithTimeout(d)), d >= time.Millisecond
		case 1:
			opts, inRange = append(opts, ratelimit.WithBreaker(int(n), d)), n >= 1 && d >= time.Millisecond
		case 2:
			opts, inRange = append(opts, ratelimit.WithPolicy(ratelimit.LocalShare(n))), n >= 1
		}
		c, err := ratelimit.New(rdb, opts...)
		require.NoError(t, redistest.CheckRefusal(err, inRange))
		if err != nil {
			return
		}
		limit := ratelimit.Limit{Rate: n, Per: d, Burst: m}
		prefix := text != "" && len(text) <= 1024 && !strings.ContainsAny(text, "{}")
		switch which % 5 {
		case 0, 1, 2: // the client works
			_, err := c.Limiter("p", ratelimit.PerSecond(1)).Allow(ctx, text)
			require.Error(t, err)
			if !errors.Is(err, ratelimit.ErrUnavailable) { // a timeout of 1 ms
				require.ErrorContains(t, err, "the call was sent")
			}
		case 3:
			for _, algorithm := range kinds {
				k := c.Limiter(text, limit, ratelimit.WithAlgorithm(algorithm))
				ok := prefix && isLimit(limit, algorithm != ratelimit.GCRA)
				if algorithm == ratelimit.SlidingWindow {
					ok = ok && limit.Rate <= (1<<53-1)/limit.Per.Milliseconds()
				}
				require.NoError(t, redistest.CheckRefusal(k.Err(), ok), "%v", limit)
				_, err := k.Allow(ctx, "key")
				if ok {
					require.ErrorContains(t, err, "the call was sent")
				} else {
					require.NoError(t, redistest.CheckRefusal(err, false))
				}
			}
		case 4:
			named := scripts.CheckName(text) == nil
			require.NoError(t, redistest.CheckRefusal(c.StoredLimiter(text).Err(), named))
			ok := named && isLimit(limit, true)
			_, err := c.StoredLimiter(text).TrySetRate(ctx, limit)
			if ok {
				require.ErrorContains(t, err, "the call was sent")
			} else {
				require.NoError(t, redistest.CheckRefusal(err, false))
			}
		}
		require.NoError(t, c.Close(ctx))
	})
}

package oracle_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
)

// five are five permits in 100 ns.
var five = oracle.Limit{Rate: 5, Per: 100, Burst: 5}

// What was given back counts as if it had never been taken, and a debt as if it had been free.
func TestSettling(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		of   oracle.Settling
		do   func(a oracle.Settling)
		at   int64 // when permits are asked for
		free [6]int64
	}{
		"a bucket": {new(oracle.Bucket), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.GiveBack(20, 10, 3, five)
		}, 20, [6]int64{20, 20, 20, 20, 30, 50}},
		"a bucket, what has come back by itself": {new(oracle.Bucket), func(a oracle.Settling) {
			a.Grant(10, 3, five)
			a.Grant(60, 2, five)
			a.GiveBack(65, 10, 3, five)
		}, 65, [6]int64{65, 65, 65, 65, 80, 100}},
		"a bucket, what a reservation waited for": {new(oracle.Bucket), func(a oracle.Settling) {
			a.Grant(0, 5, five)
			a.Grant(100, 5, five)
			a.GiveBack(50, 0, 5, five)
		}, 95, [6]int64{95, 120, 140, 160, 180, 200}},
		"a bucket in debt": {new(oracle.Bucket), func(a oracle.Settling) {
			a.Grant(0, 5, five)
			a.Book(0, 2, five)
		}, 0, [6]int64{40, 60, 80, 100, 120, 140}},
		"a window": {new(oracle.Windows), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.GiveBack(20, 10, 3, five)
		}, 20, [6]int64{20, 20, 20, 20, 110, 110}},
		"a window, what was granted in another": {new(oracle.Windows), func(a oracle.Settling) {
			a.Grant(10, 3, five)
			a.Grant(110, 3, five)
			a.GiveBack(120, 10, 3, five)
		}, 120, [6]int64{120, 120, 120, 210, 210, 210}},
		"a window in debt": {new(oracle.Windows), func(a oracle.Settling) {
			a.Grant(0, 4, five)
			a.Book(10, 3, five)
		}, 20, [6]int64{100, 100, 100, 100, 200, 200}},
		"a sliding window": {new(oracle.SlidingWindow), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.GiveBack(20, 10, 3, five)
		}, 20, [6]int64{20, 20, 20, 20, 150, 200}},
		"a sliding window, what was granted in the one before": {new(oracle.SlidingWindow), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.GiveBack(120, 10, 3, five)
		}, 120, [6]int64{120, 120, 120, 120, 150, 200}},
		"a sliding window in debt, a part of which is paid": {new(oracle.SlidingWindow), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.Book(20, 3, five)
			a.GiveBack(30, 10, 1, five)
		}, 30, [6]int64{140, 160, 180, 200, 250, 300}},
		"a log": {new(oracle.SlidingLog), func(a oracle.Settling) {
			a.Grant(10, 5, five)
			a.GiveBack(20, 10, 3, five)
		}, 20, [6]int64{20, 20, 20, 20, 110, 110}},
		"a log in debt": {new(oracle.SlidingLog), func(a oracle.Settling) {
			a.Grant(0, 5, five)
			a.Book(10, 2, five)
		}, 20, [6]int64{100, 100, 100, 100, 110, 110}},
	} {
		c.do(c.of)
		var free [6]int64
		for n := range free {
			free[n] = c.of.Free(c.at, int64(n), five)
		}
		require.Equal(t, c.free, free, what)
	}
}

// The bounds follow from the algorithms: what is granted as soon as it is free keeps them.
func TestBounds_FollowFromTheAlgorithms(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		of  func() oracle.Algorithm
		may oracle.Bound
	}{
		"GCRA":            {func() oracle.Algorithm { return new(oracle.Bucket) }, five.BucketBound()},
		"fixed windows":   {func() oracle.Algorithm { return new(oracle.Windows) }, five.WindowsBound()},
		"sliding windows": {func() oracle.Algorithm { return new(oracle.SlidingWindow) }, five.BucketBound()},
		"a log":           {func() oracle.Algorithm { return new(oracle.SlidingLog) }, five.LogBound()},
	} {
		for seed := range uint64(20) {
			a, rng, now := c.of(), rand.New(rand.NewPCG(seed, 1)), int64(0)
			var granted []oracle.Grant
			for range 100 {
				n := 1 + rng.Int64N(5)
				now = a.Free(now+rng.Int64N(40), n, five)
				require.Equal(t, now, a.Free(now, n, five))
				a.Grant(now, n, five)
				granted = append(granted, oracle.Grant{Call: now, Return: now, N: n})
			}
			require.LessOrEqual(t, oracle.Excess(granted, c.may), 0.0, fmt.Sprint(what, " ", seed))
		}
	}
}

// A permit before those that were granted for later is judged by how much is taken then. When it would be free says
// nothing: here only after all.
func TestBucket_AllowsForWhatIsRounded(t *testing.T) {
	t.Parallel()
	limit := oracle.Limit{Rate: 100, Per: 100, Burst: 100}
	for early, free := range map[int64][3]int64{0: {20, 50, 50}, 1: {20, 20, 50}, 2: {20, 20, 20}} {
		b := &oracle.Bucket{Early: early}
		b.Reset() // keeps Early
		b.Grant(0, 60, limit)
		b.Grant(50, 90, limit)
		for n, at := range free {
			got := b.Free(20, int64(n), limit)
			require.Equal(t, at == 20, got == 20, "early %d, n %d: %d", early, n, got)
		}
	}
}

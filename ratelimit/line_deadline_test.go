package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A waiter for all permits of a sliding window needs them together. They are there when nothing of this window counts any
// more, which is after the next one. If its deadline comes before, it is told at once.
func TestWait_AHopelessWaiterOfASlidingWindowIsToldAtOnce(t *testing.T) {
	t.Parallel()
	inOutage(t, func(t *testing.T, c *ratelimit.Client, answer func(string)) {
		limit := ratelimit.Limit{Rate: 10, Per: 10 * time.Second}
		k := c.Limiter("k", limit, ratelimit.WithAlgorithm(ratelimit.SlidingWindow))
		answer("( 10 4 10000 5000 1 )") // 10 in the window before, 4 and one more in this one, of which half is over
		r, err := k.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		answer("( 10 5 10000 5000 0 )")
		for within, atOnce := range map[time.Duration]bool{14 * time.Second: true, 16 * time.Second: false} {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			began := time.Now()
			err := k.WaitN(ctx, "key", 10)
			cancel()
			require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			require.Equal(t, atOnce, time.Since(began) == 0, within)
		}
	})
}

// A waiter far back in a line is told at once that its deadline comes before its turn.
// Guarantees: Q12.
func TestWait_ThoseAheadCountForTheDeadline(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	c, _, _, _ := shared(t)
	inLines(t, c, "with a deadline of thirteen intervals behind twenty others", perSeconds(1, 10), func(t *testing.T, l line) {
		_, err := l.allow(t.Context(), 1)
		require.NoError(t, err)
		waiting := make(chan error, 20)
		for range 20 {
			stop := l.waitFunc(t.Context(), 1, func(err error) { waiting <- err })
			t.Cleanup(stop)
		}
		require.NoError(t, newWheel(t).Sleep(t.Context(), 300*time.Millisecond)) // by then the line rests until its next turn
		began := time.Now()
		require.ErrorIs(t, l.wait(within(t, 130*time.Second), 1), ratelimit.ErrWouldExceedDeadline)
		require.Less(t, time.Since(began), 9*time.Second, "before a turn has come")
		require.Empty(t, waiting)
	})

	inLines(t, c, "those that come before anything is known are told as well", perSeconds(1, 10), func(t *testing.T, l line) {
		told := make(chan error, 30)
		began := time.Now()
		for range 30 {
			stop := l.waitFunc(within(t, 100*time.Second), 1, func(err error) { told <- err })
			t.Cleanup(stop)
		}
		served, refused := 0, 0
		for served+refused < 15 {
			switch err := answer(t, told); err {
			case nil:
				served++
			default:
				require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
				refused++
			}
		}
		require.Less(t, time.Since(began), 9*time.Second)
		require.LessOrEqual(t, served, 1)
	})
}

// What the policy grants in place of Redis goes to the first in line, however much that asks for.
// Guarantees: Q7.
func TestWait_IsInOrderUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	for what, policy := range map[string]ratelimit.Policy{"LocalShare": ratelimit.LocalShare(2), "FailOpen": ratelimit.FailOpen()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, server.Client(t, impatient), ratelimit.WithPolicy(policy), ratelimit.WithBreaker(1, 20*time.Millisecond))
			k := c.Limiter("k", ratelimit.PerSecond(20)) // of which ten may be used at once here
			ctx := within(t, patience)
			_, err := k.AllowN(ctx, "u", 8)
			require.NoError(t, err)
			order := make(chan int, 7)
			for i, n := range []int64{1, 9, 1, 1, 5, 1, 1} {
				k.WaitFunc(ctx, "u", n, func(err error) {
					if err == nil {
						order <- i
					}
				})
			}
			place := map[int]int{}
			for at := range 7 {
				select {
				case i := <-order:
					place[i] = at
				case <-ctx.Done():
					t.Fatal("not all were served")
				}
			}
			if what == "LocalShare" {
				require.Less(t, place[1], place[4], "what asks for nine is not overtaken by what came later")
				require.Less(t, place[1], place[6])
			}
		})
	}
}

package semaphore_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// FuzzOptions makes clients and semaphores of arbitrary names and options, and calls with arguments that are
// refused before anything is sent. No server is needed.
func FuzzOptions(f *testing.F) {
	for which := range uint8(8) {
		for _, n := range []int64{
			0, -1, 1, math.MaxInt64, math.MinInt64, 10_000, 10_001, 1<<31 - 1, 1 << 31, -1<<31 + 1, -1 << 31, 1 << 53,
			int64(10 * time.Millisecond), int64(10*time.Millisecond) - 1, int64(time.Hour), int64(time.Hour) + 1,
			int64(16 * time.Second), int64(16*time.Second) - 1, int64(8760 * time.Hour), int64(8760*time.Hour) + 1,
		} {
			f.Add(which, n, "name")
		}
		for _, text := range []string{"", "{", "a{b}c", "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeg", "é"} {
			f.Add(which, int64(time.Minute), text)
		}
	}
	w, err := wheel.New()
	require.NoError(f, err)
	server := &redistest.Replying{}
	server.Set(redistest.ServerError("NOPERM the call was sent"))
	rdb := server.Client(f)
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, which uint8, n int64, text string) {
		d, ctx := time.Duration(n), context.Background()
		var client []semaphore.Option
		switch which % 8 {
		case 0:
			client = append(client, semaphore.WithPoll(d))
		case 1:
			client = append(client, semaphore.WithIdleExpiry(d))
		}
		c, err := semaphore.New(rdb, append(client, semaphore.WithWheel(w))...)
		switch which % 8 {
		case 0:
			require.NoError(t, redistest.CheckRefusal(err, d >= 10*time.Millisecond && d <= time.Hour))
		case 1:
			require.NoError(t, redistest.CheckRefusal(err, d >= 16*time.Second && d <= 8760*time.Hour))
		default:
			require.NoError(t, err)
		}
		if err != nil {
			return
		}
		named := scripts.CheckName(text) == nil
		// refused compares the error of a call that is sent if its arguments are in range.
		refused := func(err error, inRange bool) {
			if inRange {
				require.ErrorContains(t, err, "the call was sent")
				return
			}
			require.NoError(t, redistest.CheckRefusal(err, false))
		}
		permits := func(least int64) bool { return n >= least && n <= semaphore.MaxPermits }
		switch which % 8 {
		case 2:
			require.NoError(t, redistest.CheckRefusal(c.CountingSemaphore(text, semaphore.WithMax(n)).Err(), named && permits(1)))
		case 3:
			inRange := named && d >= 10*time.Millisecond && d <= 8760*time.Hour
			require.NoError(t, redistest.CheckRefusal(c.Semaphore(text, 0, semaphore.WithLease(d)).Err(), inRange))
			require.NoError(t, redistest.CheckRefusal(c.FairSemaphore(text, 0, semaphore.WithLease(d)).Err(), inRange))
		case 4:
			_, err = c.Semaphore(text, 0).TrySetPermits(ctx, n)
			refused(err, named && permits(0))
			_, err = c.CountingSemaphore(text).TrySetPermits(ctx, n)
			refused(err, named && permits(0))
		case 5:
			refused(c.CountingSemaphore(text).AddPermits(ctx, n), named && permits(-semaphore.MaxPermits))
		case 6:
			err = c.CountingSemaphore(text).TryAcquire(ctx, n)
			if n != 0 || !named {
				refused(err, named && permits(0))
			}
		case 7:
			isID := len(text) == 32
			for _, x := range text {
				isID = isID && (x >= '0' && x <= '9' || x >= 'a' && x <= 'f' || x >= 'A' && x <= 'F')
			}
			err = c.Semaphore("s", 0).UpdateLease(ctx, text, d)
			refused(err, isID && d >= time.Millisecond && d <= 8760*time.Hour)
		}
		require.NoError(t, c.Close(ctx))
	})
}

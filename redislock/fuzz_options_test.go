package redislock_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// edges are integers at the ends of ranges.
var edges = []int64{
	0, -1, 1, math.MaxInt64, math.MinInt64, 1 << 31, 1 << 53, 100, 101, 10_000, 10_001,
	int64(time.Millisecond), int64(time.Millisecond) - 1, int64(10 * time.Millisecond), int64(10*time.Millisecond) - 1,
	int64(time.Minute), int64(time.Minute) + 1, int64(time.Hour), int64(time.Hour) + 1, int64(8760 * time.Hour), int64(8760*time.Hour) + 1,
}

// FuzzOptions makes clients and locks of arbitrary names and options. No server is needed.
func FuzzOptions(f *testing.F) {
	for which := range uint8(7) {
		for _, n := range edges {
			f.Add(which, n, int64(time.Second), "name")
			f.Add(which, int64(1), n, "name")
		}
		for _, text := range []string{"", " ", "{", "{}", "a{b}c", "a}b", "\x00", "\xff", strings.Repeat("x", 257), "m=1&:2"} {
			f.Add(which, int64(time.Second), int64(time.Second), text)
		}
	}
	w, err := wheel.New()
	require.NoError(f, err)
	server := &redistest.Replying{}
	rdb := server.Client(f)
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, which uint8, n, m int64, text string) {
		d, e := time.Duration(n), time.Duration(m)
		var client []redislock.Option
		var lock []redislock.LockOption
		inRange, lockInRange := true, scripts.CheckName(text) == nil
		switch which % 7 {
		case 0:
			client, inRange = append(client, redislock.WithPoll(d)), d >= 10*time.Millisecond && d <= time.Hour
		case 1:
			lock = append(lock, redislock.WithLease(d)) // short: any, of no lock
			lockInRange = lockInRange && d >= 10*time.Millisecond && d <= 8760*time.Hour
		case 2:
			lock = append(lock, redislock.WithReplicas(int(n), e))
			lockInRange = lockInRange && n >= 1 && n <= 100 && e >= time.Millisecond && e <= time.Minute
		case 3:
			lock = append(lock, redislock.WithMaxHold(d))
			lockInRange = lockInRange && d >= time.Millisecond && d <= 8760*time.Hour
		case 4:
			lock = append(lock, redislock.WithHandoff(int(n), e))
			lockInRange = lockInRange && n >= 0 && n <= 10_000 && e >= 0 && e <= time.Minute
		case 5:
			lock = append(lock, redislock.WithMetadata(text))
			lockInRange = lockInRange && text != "" && len(text) <= 256 && utf8.ValidString(text)
		case 6:
			lock = append(lock, redislock.WithMinHold(d))
			lockInRange = lockInRange && d >= time.Millisecond && d <= 8760*time.Hour
		}
		c, err := redislock.New(rdb, append(client, redislock.WithWheel(w))...)
		require.NoError(t, redistest.CheckRefusal(err, inRange))
		if err != nil {
			return
		}
		rw := c.RWMutex(text, lock...)
		require.NoError(t, redistest.CheckRefusal(c.Mutex(text, lock...).Err(), lockInRange))
		othersInRange := lockInRange && which%7 != 6 // they refuse a minimum
		for _, err := range []error{
			c.FairMutex(text, lock...).Err(), rw.Err(), c.MultiMutex([]string{text}, lock...).Err(),
			c.Mutex(text, append(lock, redislock.WithStringKey())...).Err(),
		} {
			require.NoError(t, redistest.CheckRefusal(err, othersInRange))
		}
		if !lockInRange { // nothing is sent: the server has no reply
			_, err := c.Mutex(text, lock...).TryLock(context.Background())
			require.NoError(t, redistest.CheckRefusal(err, false))
		}
		require.NoError(t, c.Close(context.Background()))
	})
}

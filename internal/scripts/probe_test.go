package scripts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// probes are calls without requests, of a key and of a log.
func probes(key string) map[*scripts.Script][]any {
	log := key + ":log"
	return map[*scripts.Script][]any{
		scripts.RateGCRA:    {[]string{key}, 1, int64(60e6), 0, 0, 0},
		scripts.RateWindow:  {[]string{key}, 10, 60_000, 0, 0},
		scripts.RateSliding: {[]string{key}, 10, 60_000, 0},
		scripts.RateLog:     {logKeys(log), "", -2, 0, 0, 0},
		scripts.RateAll: {
			[]string{key, key + ":also", key + ":too"}, 0, 3, "window", 10, 60_000, "gcra", 1, int64(60e6), 0, 0, "sliding", 10, 60_000, 0,
		},
	}
}

func logKeys(name string) []string { return []string{name, name + ":value", name + ":permits"} }

// A probe leaves every key as it was, its expiry included, also a state in a format that it does not know. A second
// execution, as after a lost reply, does too.
// Guarantees: Q20.
func TestProbe_LeavesTheStateAsItIs(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), redistest.Shared(t).Client(t)
	for i, state := range []string{
		"3:60000", "10:60000", "3", fmt.Sprint(time.Now().Add(time.Minute).UnixMicro()),
		fmt.Sprint(time.Now().Add(time.Minute).UnixMicro(), ":1:3:60"), "3:60000:future", "1:2:3:60000", "99999999:2:3:60000", "3:60000@5", "99999999:2:3:60000@5:6", "1:2:3:60000:future", "v2 future", "", "0x10", "1.5",
	} {
		for _, ttl := range []time.Duration{0, 50 * time.Second} {
			key := fmt.Sprint(redistest.Name(t), i, ttl)
			for script, call := range probes(key) {
				began := time.Now()
				require.NoError(t, rdb.Set(ctx, key, state, ttl).Err())
				require.NoError(t, rdb.HSet(ctx, key+":log", "rate", 10, "interval", 60_000, "type", 0, "keepAliveTime", 90_000).Err())
				require.NoError(t, rdb.Set(ctx, key+":log:value", state, ttl).Err())
				require.NoError(t, rdb.ZAdd(ctx, key+":log:permits", redis.Z{Score: 1, Member: "\x10expired.........\x01\x00\x00\x00"}).Err())
				for range 2 {
					require.NoError(t, script.RunOnce(ctx, rdb, call[0].([]string), call[1:]...).Err(), "%s %q", script.Name(), state)
				}
				for _, k := range []string{key, key + ":log:value"} {
					require.Equal(t, state, rdb.Get(ctx, k).Val(), script.Name())
					left := rdb.PTTL(ctx, k).Val()
					if ttl == 0 {
						require.Negative(t, left, script.Name())
					} else {
						require.GreaterOrEqual(t, left, ttl-time.Since(began)-time.Millisecond, script.Name())
						require.LessOrEqual(t, left, ttl, script.Name())
					}
				}
				require.Negative(t, rdb.PTTL(ctx, key+":log").Val(), "the limit is not kept alive")
				require.EqualValues(t, 1, rdb.ZCard(ctx, key+":log:permits").Val(), script.Name())
			}
		}
	}
}

// A probe of an absent key leaves nothing behind, and takes nothing from the request that follows at once.
// Guarantees: Q20.
func TestProbe_OfAnAbsentKey(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), redistest.Shared(t).Client(t)
	grant := map[*scripts.Script][]any{ // ten permits, the whole limit
		scripts.RateGCRA:    {1, int64(60e6), 0, 0, 1, int64(60e6), 0, 1},
		scripts.RateWindow:  {10, 60_000, 0, 1, 10, 1},
		scripts.RateSliding: {10, 60_000, 1, 10, 1},
		scripts.RateAll:     {0, 1, "window", 10, 60_000, 1, 1, 10},
	}
	probe := map[*scripts.Script][]any{
		scripts.RateGCRA: {1, int64(60e6), 0, 0, 0}, scripts.RateWindow: {10, 60_000, 0, 0},
		scripts.RateSliding: {10, 60_000, 0}, scripts.RateAll: {0, 1, "window", 10, 60_000, 0},
	}
	for script, args := range grant {
		key := redistest.Name(t) + script.Name()
		began := time.Now()
		_, err := rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Eval(ctx, script.Source(), []string{key}, probe[script]...)
			pipe.Eval(ctx, script.Source(), []string{key}, args...)
			return nil
		})
		require.NoError(t, err, script.Name())
		require.Greater(t, rdb.PTTL(ctx, key).Val(), time.Minute-time.Since(began)-2*time.Millisecond, script.Name())
		again, err := rdb.Eval(ctx, script.Source(), []string{key}, args...).Int64Slice()
		require.NoError(t, err)
		granted := again[len(again)-1]
		if script == scripts.RateAll {
			granted = again[1]
		}
		require.Zero(t, granted, "%s: the whole limit was used", script.Name())

		require.NoError(t, rdb.Del(ctx, key).Err())
		require.NoError(t, script.RunOnce(ctx, rdb, []string{key}, probe[script]...).Err())
		redistest.Poll(t, func() bool { return rdb.Exists(ctx, key).Val() == 0 })
	}
	log := redistest.Name(t)
	require.NoError(t, rdb.HSet(ctx, log, "rate", 10, "interval", 60_000, "type", 0).Err())
	require.NoError(t, scripts.RateLog.RunOnce(ctx, rdb, logKeys(log), "", -2, 0, 0, 0).Err())
	require.Zero(t, rdb.Exists(ctx, logKeys(log)[1:]...).Val(), "Redisson would take a value for the whole state")
}

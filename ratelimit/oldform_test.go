package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What is no log of this form is refused by every call and left as it is.
// Guarantees: A2.
func TestStoredLimiter_LeavesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, counted := range []bool{false, true} { // whether this process has had the log counted before
		for what, state := range map[string]func(ctx context.Context, t *testing.T, name string) []string{
			"a list at the value": func(ctx context.Context, t *testing.T, name string) []string {
				return []string{"RPUSH", ratelimit.LogKeys(name)[1], "mine"}
			},
			"a string at the log": func(ctx context.Context, t *testing.T, name string) []string {
				return []string{"SET", ratelimit.LogKeys(name)[2], "mine"}
			},
			// Redisson before 3.13.3 had a counter that expires with its window, and no log.
			"the oldest form": func(ctx context.Context, t *testing.T, name string) []string {
				return []string{"SET", ratelimit.LogKeys(name)[1], "3", "PX", "60000"}
			},
		} {
			if counted && what == "the oldest form" {
				continue // it is looked for when a process counts a log for the first time
			}
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				l, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
				keys := ratelimit.LogKeys(name)
				if counted {
					_, err := l.Allow(ctx)
					require.NoError(t, err)
					require.NoError(t, rdb.Del(ctx, keys[1], keys[2]).Err())
				}
				command := []any{}
				for _, word := range state(ctx, t, name) {
					command = append(command, word)
				}
				require.NoError(t, rdb.Do(ctx, command...).Err())
				dump := func() (values []string) {
					for _, key := range keys {
						values = append(values, rdb.Dump(ctx, key).Val())
					}
					return values
				}
				before := dump()
				for call, f := range map[string]func() error{
					"Allow":     func() error { _, err := l.Allow(ctx); return err },
					"AllowUpTo": func() error { _, err := l.AllowUpTo(ctx, 3); return err },
					"Reserve":   func() error { _, err := l.Reserve(ctx, 1); return err },
					"Wait":      func() error { return l.Wait(ctx) },
				} {
					err := f()
					require.ErrorIs(t, err, ratelimit.ErrWrongKind, call)
					requireOneLine(t, err)
					require.Equal(t, before, dump(), call)
				}
				if what == "the oldest form" {
					require.InDelta(t, time.Minute, rdb.PTTL(ctx, keys[1]).Val(), float64(20*time.Second), "its expiry is left too")
				}
			})
		}
	}
}

// Reserve, act, Settle: a deferred Cancel gives back all that was reserved, or nothing after Settle.
// Guarantees: Q22.
func TestReservation_CancelCanBeDeferredBehindSettle(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	limit := perSeconds(1, 3600)
	l, own := c.StoredLimiter(name), c.StoredLimiter(name+":own")
	require.NoError(t, l.SetRate(ctx, limit))
	require.NoError(t, own.SetRate(ctx, limit, ratelimit.WithScope(ratelimit.PerClient)))
	k := c.Limiter("k", limit)
	for what, reserve := range map[string]func() (*ratelimit.Reservation, error){
		"Limiter":       func() (*ratelimit.Reservation, error) { return k.Reserve(ctx, name, 1) },
		"StoredLimiter": func() (*ratelimit.Reservation, error) { return l.Reserve(ctx, 1) },
		"PerClient":     func() (*ratelimit.Reservation, error) { return own.Reserve(ctx, 1) },
	} {
		acted := 0
		for i := range 50 {
			func() {
				acts := i%5 == 4
				r, err := reserve()
				if err != nil {
					require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline, what)
					return
				}
				defer func() {
					given, err := r.Cancel(ctx)
					require.NoError(t, err)
					require.Equal(t, !acts, given, what)
				}()
				if r.Delay() == 0 && acts {
					acted++
					require.NoError(t, r.Settle(ctx, 1))
				}
			}()
		}
		require.Equal(t, 1, acted, what)
	}
}

package robustness_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness"
)

func TestRemains_FindsWhatIsLeft(t *testing.T) {
	t.Parallel()
	left := func(kind, key string, ttl time.Duration) int {
		return len(robustness.Left(kind, map[string]time.Duration{key: ttl}, nil, nil, nil, 0))
	}
	for _, allowed := range []struct {
		kind, key string
		ttl       time.Duration
	}{
		{"fenced mutex", "redisson_lock_token:{object-0}", 24 * time.Hour},
		{"leased permits", "{object-0}:fence", 24 * time.Hour},
		{"leased permits", "object-0", -1},
		{"leased permits", "{object-0}:timeout", -1},
		{"leased permits", "{object-0}:call:7:client", time.Minute},
		{"fair leased permits", "{object-0}:fair:permits", -1},
		{"counting permits", "{object-0}:acquiring:client", 10 * time.Minute},
		{"tasks", "{object-0}:delay:token", 24 * time.Hour},
		{"tasks", "{object-0}:delay:edits:client", 10 * time.Minute},
		{"tasks", "{object-0}:delay:claims:client", 10 * time.Minute},
	} {
		require.Zero(t, left(allowed.kind, allowed.key, allowed.ttl), allowed)
		if allowed.ttl > 0 {
			require.Equal(t, 1, left(allowed.kind, allowed.key, allowed.ttl+time.Millisecond), "too long: %v", allowed)
			require.Equal(t, 1, left(allowed.kind, allowed.key, -1), "for ever: %v", allowed)
		}
	}
	for _, hold := range []struct{ kind, key string }{
		{"mutex", "object-0"},
		{"multi mutex", "{object-0}:2"},
		{"read/write mutex", "{object-0}:id:rwlock_timeout:1"},
		{"fair mutex", "redisson_lock_queue:{object-0}"},
		{"fair leased permits", "{object-0}:fair:waiting"},
		{"mutex", "{object-0}:timeout"},
		{"tasks", "{object-0}:delay:tasks"},
	} {
		require.Equal(t, 1, left(hold.kind, hold.key, time.Second), hold)
		require.Equal(t, 1, left(hold.kind, hold.key, -1), hold)
	}
	for _, limit := range []struct{ kind, key string }{
		{"GCRA, FailClosed", "robustness:{object-0}"},
		{"fixed window", "robustness:{object-0}:window"},
		{"sliding window", "robustness:{object-0}:sliding"},
	} {
		require.Zero(t, left(limit.kind, limit.key, time.Second), limit)
		require.Equal(t, 1, left(limit.kind, limit.key, -1), "for ever: %v", limit)
	}
	channels := []string{"redisson_lock__channel:{object-0}"}
	require.Len(t, robustness.Left("mutex", nil, channels, nil, nil, 0), 1)
	require.Len(t, robustness.Left("mutex", nil, nil, []string{"id=7 user=app"}, nil, 0), 1)
	missing := map[string]int64{"object-0": 1, "object-1": 0}
	require.Len(t, robustness.Left("leased permits", nil, nil, nil, missing, 0), 1)

	// A server whose clock was an hour ahead gave its keys another hour, and no key for ever.
	const hour = time.Hour
	ahead := func(key string, ttl time.Duration) int {
		return len(robustness.Left("fenced mutex", map[string]time.Duration{key: ttl}, nil, nil, nil, hour))
	}
	require.Zero(t, ahead("redisson_lock_token:{object-0}", 25*hour))
	require.Equal(t, 1, ahead("redisson_lock_token:{object-0}", 25*hour+time.Millisecond))
	require.Equal(t, 1, ahead("redisson_lock_token:{object-0}", -1))
	require.Equal(t, 1, ahead("object-0", time.Second))
}

package scripts_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// A copy of a call may arrive late. It may follow another call that granted its holder more. Or it replaces
// the first copy; its effect must then be complete, since the holder counts its lease from before the last
// copy was sent.
func TestRepeatedCalls(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	run := func(t *testing.T, s *scripts.Script, keys []string, args ...any) {
		t.Helper()
		reply, err := s.Run(t.Context(), rdb, keys, args...).Int64Slice()
		require.NoError(t, err)
		require.EqualValues(t, 1, reply[0])
	}
	acquisitions := map[string]func(t *testing.T, name, id string, ms int){
		"plain": func(t *testing.T, name, id string, ms int) {
			run(t, scripts.LockAcquire, []string{name}, id, ms)
		},
		"string": func(t *testing.T, name, id string, ms int) {
			run(t, scripts.StringAcquire, []string{name}, id, ms)
		},
		"fair": func(t *testing.T, name, id string, ms int) {
			run(t, scripts.FairLockAcquire, scripts.FairLockKeys(name), id, ms, 1, 300_000, 15_000, "PUBLISH", "c")
		},
		"write": func(t *testing.T, name, id string, ms int) {
			run(t, scripts.WriteAcquire, []string{name}, id, ms)
		},
		"read": func(t *testing.T, name, id string, ms int) {
			run(t, scripts.ReadAcquire, []string{name, scripts.ReadTimeout(name, id)}, id, ms)
		},
	}
	for kind, acquire := range acquisitions {
		t.Run("a late copy of an acquisition does not shorten an extended lease: "+kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			acquire(t, name, "me:1", 10_000)
			keys, renew := []string{name}, scripts.LockRenew
			switch kind {
			case "read":
				keys, renew = append(keys, scripts.ReadTimeout(name, "me:1")), scripts.ReadRenew
			case "string":
				renew = scripts.StringRenew
			}
			run(t, renew, keys, "me:1", 60_000)
			acquire(t, name, "me:1", 10_000)
			for _, key := range keys {
				requireTTL(t, rdb, key, time.Minute)
			}
		})
	}

	t.Run("a second copy of a downgrade restores the reader's whole lease", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		timeout := scripts.ReadTimeout(name, "me:2")
		acquisitions["write"](t, name, "me:1:write", 10_000)
		downgrade := func() {
			run(t, scripts.Downgrade, []string{name, timeout}, "me:1:write", "me:2", 30_000, "PUBLISH", scripts.RWChannel(name))
		}
		downgrade()
		// most of the lease passes before the second copy
		_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.PExpire(t.Context(), name, 5*time.Second)
			pipe.PExpire(t.Context(), timeout, 5*time.Second)
			return nil
		})
		require.NoError(t, err)
		downgrade()
		requireTTL(t, rdb, name, 30*time.Second)
		requireTTL(t, rdb, timeout, 30*time.Second)
	})
}

package sim_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// faults are those that a real server can be made to have, and how.
var faults = map[string]func(t *testing.T, rdb *redis.Client, on bool){
	"out of memory": func(t *testing.T, rdb *redis.Client, on bool) {
		t.Helper()
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", map[bool]string{true: "1", false: "0"}[on]).Err())
	},
	"read-only": func(t *testing.T, rdb *redis.Client, on bool) {
		t.Helper()
		if on {
			require.NoError(t, rdb.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
		} else {
			require.NoError(t, rdb.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		}
	},
	"no right to publish": func(t *testing.T, rdb *redis.Client, on bool) {
		t.Helper()
		rule := map[bool]string{true: "-publish", false: "+publish"}[on]
		require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "default", rule).Err())
	},
}

// The embedded server answers as a real one does: to the same operations in the same order, also under faults.
func TestReplay_OnARealServer(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	agreed := 0
	for seed := range uint64(13) {
		for fault, set := range faults {
			var said [2][]string
			for i := range said {
				s := sim.Draw(seed)
				s.Policy = "closed" // others decide by their own time
				rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout = redistest.Patience })
				refuse := func(_ string, on bool) { set(t, server.Client(t), on) }
				if i == 1 {
					var err error
					rdb, refuse, err = sim.Embedded()
					require.NoError(t, err)
				}
				require.NoError(t, rdb.FlushAll(t.Context()).Err())
				sample, err := sim.NewSample(s, rdb)
				require.NoError(t, err)
				ops := s.Ops[:min(len(s.Ops), 30)]
				for at, o := range ops {
					if at == len(ops)/2 {
						refuse(fault, true)
					}
					name := s.Objects[o.Object].Name
					said[i] = append(said[i], fmt.Sprintf("%d %s %s: %s", at, name, o.Action, sample.Do(o)))
				}
				refuse(fault, false)
				sample.Close()
			}
			require.Equal(t, said[0], said[1], "seed %d, %s", seed, fault)
			agreed += len(said[0])
		}
	}
	t.Logf("%d operations ended alike", agreed)
}

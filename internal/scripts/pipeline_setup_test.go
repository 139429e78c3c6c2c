package scripts_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// If the server refuses a connection's set-up, nothing executes, and every command of the pipeline returns
// the error.
// Guarantees: L11.
func TestPipelines_FailIfTheConnectionSetUpFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	for name, opt := range map[string]func(*redis.Options){
		"refused by AUTH":   func(o *redis.Options) { o.Username, o.Password = "unknown", "wrong" },
		"refused by SELECT": func(o *redis.Options) { o.DB = 9999 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := redistest.Name(t)
			rdb := server.Client(t, opt)
			call := scripts.LockAcquire.Call([]string{key}, "me:1", 1000)
			batch := []scripts.Call{call, call, call}
			cmds := scripts.RunBatch(t.Context(), rdb, batch)
			require.Len(t, cmds, len(batch))
			for _, cmd := range cmds {
				require.Error(t, cmd.Err())
				var answer redis.Error
				require.ErrorAs(t, cmd.Err(), &answer, "the error is the server's reply")
			}
			require.Zero(t, admin.Exists(t.Context(), key).Val())
		})
	}
}

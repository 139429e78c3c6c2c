//go:build unix

package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A process that stands still is no outage of Redis, whose answers wait in its sockets.
// Guarantees: Q34.
func TestAllow_APauseOfTheProcessIsNoOutage(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+rolePaused, childAddr+"="+server.Addr(), childEnd+"=6s")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	require.NoError(t, cmd.Start())
	w := newWheel(t)
	redistest.Poll(t, func() bool { return server.Client(t).DBSize(t.Context()).Val() > 0 })
	for range 3 {
		require.NoError(t, w.Sleep(t.Context(), 150*time.Millisecond))
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
		require.NoError(t, w.Sleep(t.Context(), pausedTimeout+400*time.Millisecond))
		require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	}
	require.NoError(t, cmd.Wait())
	var counts pausedCounts
	require.NoError(t, json.Unmarshal(out.Bytes(), &counts))
	t.Logf("%+v", counts)
	require.Greater(t, counts.Calls, 100)
	require.Zero(t, counts.Failed)
	require.Zero(t, counts.Degraded, "decided by the policy")
	require.LessOrEqual(t, counts.MostGranted, 10)
}

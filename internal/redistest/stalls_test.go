//go:build unix

package redistest_test

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A process that was stopped is told for how long. It stops itself here, which other tests must bear.
func TestStalls_AreTheTimesInWhichTheProcessDidNotRun(t *testing.T) {
	t.Parallel()
	const stop = 400 * time.Millisecond
	stalled := redistest.Stalls(t)
	script := "kill -STOP $PARENT; sleep 0.4; kill -CONT $PARENT"
	ran := redistest.Running(t, func() {
		began := time.Now()
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = append(os.Environ(), "PARENT="+strconv.Itoa(os.Getpid()))
		require.NoError(t, cmd.Run())
		require.Greater(t, time.Since(began), stop, "control: the clock goes on")
	})
	require.Greater(t, stalled(), stop-50*time.Millisecond)
	require.Less(t, ran, stop)
}

// What a test waits for is no stall, however long it takes.
func TestStalls_AreNotTheTimesInWhichTheProcessWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stalled := redistest.Stalls(t)
		require.Equal(t, time.Minute, redistest.Running(t, func() { time.Sleep(time.Minute) }))
		require.Zero(t, stalled())
	})
}

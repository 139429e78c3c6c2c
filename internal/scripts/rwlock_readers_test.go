package scripts_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Redis executes nothing else during a script, so the work of a script must not grow with the number of
// readers.
// Guarantees: L28.
func TestScale_ReadReleaseOfManyReaders(t *testing.T) {
	t.Parallel()
	const readers = 1000
	rdb := redistest.Start(t).Client(t)
	l := rwLock{t, rdb, redistest.Name(t)}
	for i := range readers {
		l.read(fmt.Sprintf("reader:%d", i), 60_000)
	}
	commands := func() int64 {
		var calls, commands int64
		info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for _, stat := range info["Commandstats"] {
			_, err := fmt.Sscanf(stat, "calls=%d", &calls)
			require.NoError(t, err)
			commands += calls
		}
		return commands
	}
	before := commands()
	for i := range readers {
		require.Equal(t, 1, l.releaseRead(fmt.Sprintf("reader:%d", i)))
	}
	each := (commands() - before) / readers
	require.GreaterOrEqual(t, each, int64(4))
	require.Less(t, each, int64(20), "commands a release")
	l.requireFree()
}

// Guarantees: L27.
func TestReadRelease_RemovesManyDeadReaders(t *testing.T) {
	t.Parallel()
	l := newRWLock(t)
	for i := range 100 {
		id := fmt.Sprintf("dead:%d", i)
		l.read(id, 30_000)
		require.NoError(t, l.rdb.Del(t.Context(), scripts.ReadTimeout(l.name, id)).Err())
	}
	for _, left := range []time.Duration{time.Minute, 50 * time.Millisecond} {
		l.read("me:1", 60_000)
		require.NoError(t, l.rdb.PExpire(t.Context(), l.name, left).Err())
		require.NoError(t, l.rdb.PExpire(t.Context(), scripts.ReadTimeout(l.name, "me:1"), left).Err())
		if l.releaseRead("me:1") == 1 { // unless the 50 ms have passed
			l.requireFree()
		}
		for i := range 100 {
			require.NoError(t, l.rdb.HSet(t.Context(), l.name, "mode", "read", fmt.Sprintf("dead:%d", i), 1).Err())
		}
	}
}

package redislock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// ForceUnlockHolder frees the lock only if it is still held under the given id.
func forceUnlockHolderFreesOnlyThatHolder(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	m := newMutex(c, lut.kind, lut.name)
	stuck := mustTryLock(t, lut.mutex(lut.newClient(t), redislock.WithMetadata("host 3:job/7")))
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 1)
	seen := state.Holders[0]
	require.Equal(t, "host 3:job/7", seen.Metadata)

	for _, other := range []string{"", "another:1", seen.ID + "1"} {
		freed, err := m.ForceUnlockHolder(t.Context(), other)
		require.NoError(t, err)
		require.False(t, freed)
		require.Contains(t, lut.requireHeldOnce(t), seen.ID)
	}
	freed, err := m.ForceUnlockHolder(t.Context(), seen.ID)
	require.NoError(t, err)
	require.True(t, freed)
	lut.requireNoKeys(t)
	require.ErrorIs(t, stuck.Unlock(t.Context()), redislock.ErrLost)

	next := mustTryLock(t, lut.mutex(lut.newClient(t)))
	freed, err = m.ForceUnlockHolder(t.Context(), seen.ID)
	require.NoError(t, err)
	require.False(t, freed, "another holder has acquired since")
	require.NoError(t, next.Err())
	mustUnlock(t, next)
	lut.requireNoKeys(t)
}

// ForceUnlockHolder frees one of several readers. The others keep the lock.
func TestRWMutex_ForceUnlockHolderFreesOneReader(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	m := c.RWMutex(name).Reader()
	stuck := mustTryLock(t, c.RWMutex(name, redislock.WithMetadata("stuck")).Reader())
	well := mustTryLock(t, c.RWMutex(name, redislock.WithMetadata("well")).Reader())
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 2)
	for _, h := range state.Holders {
		if h.Metadata == "stuck" {
			freed, err := m.ForceUnlockHolder(t.Context(), h.ID)
			require.NoError(t, err)
			require.True(t, freed)
		}
	}
	state, err = m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 1)
	require.Equal(t, "well", state.Holders[0].Metadata)
	require.ErrorIs(t, stuck.Unlock(t.Context()), redislock.ErrLost)
	mustUnlock(t, well)
}

package scripts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Leases that are left when the number of permits has gone are of no semaphore any more.
// Guarantees: S20.
func TestPermitEdit_LeasesOfAnEarlierSemaphore(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(2)
	s.take(60_000, idA+idB)
	s.rdb.Del(t.Context(), s.name)
	keys := []string{s.name, s.part("timeout"), s.part("record"), s.part("fair:permits")}
	require.EqualValues(t, 1, s.one(scripts.PermitEdit, keys, "try", 1, "PUBLISH", "c", 60_000, 0))
	require.EqualValues(t, 1, s.one(scripts.PermitState, keys[:2], "PUBLISH", "c"), "one is free")
	require.Zero(t, s.rdb.ZCard(t.Context(), keys[1]).Val(), "none is held")
	require.Equal(t, []int64{0, 0}, s.back(0, idA, idB))
	require.Equal(t, "1", s.free(), "the end of the old leases adds nothing")
}

// A copy of a Delete that arrives late finds what the first did.
// Guarantees: S18.
func TestSemDelete(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(2)
	s.take(60_000, idA)
	keys := []string{s.name, s.part("record"), s.part("timeout")}
	for range 2 {
		require.EqualValues(t, 1, s.one(scripts.SemDelete, keys, "PUBLISH", "c", 60_000))
		require.Zero(t, s.rdb.Exists(t.Context(), keys[0], keys[2]).Val())
	}
	s.put(7)
	require.EqualValues(t, 1, s.one(scripts.SemDelete, keys, "PUBLISH", "c", 60_000))
	require.Equal(t, "7", s.free())
}

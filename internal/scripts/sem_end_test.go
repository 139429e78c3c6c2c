package scripts_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Leases that are left when the number of permits has gone are of no semaphore any more.
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
func TestSemDelete(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(2)
	s.take(60_000, idA)
	keys := []string{s.name, s.part("record"), s.part("timeout")}
	for range 2 {
		require.EqualValues(t, 1, s.one(scripts.SemDelete, keys, "PUBLISH", "c", 60_000, 0))
		require.Zero(t, s.rdb.Exists(t.Context(), keys[0], keys[2]).Val())
	}
	s.put(7)
	require.EqualValues(t, 1, s.one(scripts.SemDelete, keys, "PUBLISH", "c", 60_000, 0))
	require.Equal(t, "7", s.free())
}

// An id that leaves twice in one call gives back one permit.
func TestFairStep_AnIDThatLeavesTwice(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	keys := []string{s.part("p"), s.part("l"), s.part("q"), s.part("a"), s.part("n"), s.part("f")}
	s.rdb.Set(t.Context(), keys[0], 1, 0)
	s.rdb.ZAdd(t.Context(), keys[1], redis.Z{Score: 1e15, Member: idA})
	got, err := scripts.FairStep.Run(t.Context(), s.rdb, keys, "PUBLISH", "c", 60_000, strings.Repeat("1", 32), 60_000, 0, 0, 2, idA, idA).Slice()
	require.NoError(t, err)
	require.Equal(t, []any{int64(1), int64(0)}, got[0])
	require.Equal(t, "2", s.rdb.Get(t.Context(), keys[0]).Val())
}

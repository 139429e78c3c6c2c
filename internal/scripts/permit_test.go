package scripts_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// total is the number of permits, free or held.
func (s sem) total() int {
	s.t.Helper()
	free, err := strconv.Atoi(s.free())
	require.NoError(s.t, err)
	return free + int(s.rdb.ZCard(s.t.Context(), s.part("timeout")).Val())
}

func (s sem) fence() int64 {
	s.t.Helper()
	token, err := s.rdb.Get(s.t.Context(), s.part("fence")).Int64()
	require.NoError(s.t, err)
	return token
}

// What a late copy of an acquisition takes anew is counted, and what it still has is not counted again.
func TestPermitAcquire_RepeatedAfterARelease(t *testing.T) {
	t.Parallel()
	for what, released := range map[string]string{"its first": idA, "its second": idB, "both": idA + idB} {
		for free, n := range map[string]int{"enough are free": 5, "few are free": 2} {
			t.Run(what+" permit was released, "+free, func(t *testing.T) {
				t.Parallel()
				s := newSem(t)
				s.put(n)
				s.take(60_000, idA+idB)
				for id := released; id != ""; id = id[16:] {
					require.Equal(t, []int64{1}, s.back(0, id[:16]))
				}
				s.take(60_000, idA+idB)
				require.Equal(t, n, s.total())
				s.take(60_000, idA+idB)
				require.Equal(t, n, s.total())
			})
		}
	}
}

func TestPermitAcquire_ExpiredPermits(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(2)
	ended := float64(s.rdb.Time(t.Context()).Val().UnixMilli() - 1)
	s.rdb.ZAdd(t.Context(), s.part("timeout"), redis.Z{Score: ended, Member: idA}, redis.Z{Score: ended, Member: idB})

	require.Positive(t, s.take(60_000, idC)[4])
	require.Equal(t, "1", s.free(), "they are left while they are not needed")
	require.Equal(t, []int64{1}, s.back(0, idA), "and can be released, since no other caller has them")
	require.Equal(t, []int64{0}, s.back(1, idB), "unless only permits that are held count")
	require.Equal(t, 4, s.total())
	require.Positive(t, s.take(60_000, strings.Repeat("d", 16)+strings.Repeat("e", 16)+strings.Repeat("f", 16))[4])
	require.Equal(t, "0", s.free(), "they are reclaimed when they are needed")
	require.Equal(t, 4, s.total())
}

func TestPermitAcquire_Fence(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(100)
	now := func() int64 { return s.rdb.Time(t.Context()).Val().UnixMicro() }
	expires := func() time.Duration { return s.rdb.PTTL(t.Context(), s.part("fence")).Val() }
	set := func(token int64) { s.rdb.Set(t.Context(), s.part("fence"), token, 30*time.Second) }

	got := s.take(1000, idA, idB)
	require.Equal(t, got[4]+1, got[5])
	require.Equal(t, got[5], s.fence())
	require.InDelta(t, time.Minute, expires(), float64(time.Second))

	const hour = int64(time.Hour / time.Microsecond)
	if began := now(); began%hour < hour-time.Minute.Microseconds() { // otherwise an hour may begin meanwhile
		set(began)
		require.Greater(t, s.take(1000, idA)[4], began)
		require.LessOrEqual(t, expires(), 30*time.Second, "it keeps its expiry for the rest of the hour")
	}
	set(now() - hour)
	s.take(1000, idA)
	require.Greater(t, expires(), 30*time.Second, "another hour has begun")

	ahead := now() + 2*hour
	set(ahead)
	require.Equal(t, []int64{ahead + 1, ahead + 2}, s.take(1000, idC, strings.Repeat("d", 16))[4:], "the clock was set back")
	require.Equal(t, ahead+2, s.fence())
	require.Greater(t, expires(), 30*time.Second, "the clock does not tell how old it is")
}

// A permit that is free costs the server seven commands, and its release five.
func TestPermit_Commands(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	s := sem{t: t, rdb: rdb, name: "permits", channel: scripts.SemChannel("permits")}
	s.put(3)
	s.take(60_000, idA)
	for what, want := range map[string]int{"acquire": 7, "release": 5} {
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		if what == "acquire" {
			s.run(scripts.PermitAcquire, s.permitKeys(), "PUBLISH", "c", 60_000, 0, 1, 0, "", 60_000, 1, idB)
		} else {
			s.back(0, idA)
		}
		calls := 0
		stats := rdb.Info(t.Context(), "commandstats").Val()
		for _, m := range regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
			if n, err := strconv.Atoi(m[2]); err == nil && !strings.HasPrefix(m[1], "eval") && !strings.HasPrefix(m[1], "config") && m[1] != "info" {
				calls += n
			}
		}
		require.Equal(t, want, calls, "%s: %s", what, stats)
	}
}

// The number of permits was deleted after an acquisition, whose copy comes late: the number is that of no
// semaphore.
func TestPermitAcquire_ALateCopyCreatesNoNumber(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	keys := []string{name, name + ":leases", name + ":fence"}
	args := []any{"PUBLISH", "c", 60_000, 0, 1, 0, "", 30_000, 1, idC}
	require.NoError(t, rdb.Set(t.Context(), name, 3, 0).Err())
	require.NoError(t, scripts.PermitAcquire.Run(t.Context(), rdb, keys, args...).Err())
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	reply, err := scripts.PermitAcquire.Run(t.Context(), rdb, keys, args...).Int64Slice()
	require.NoError(t, err)
	require.Positive(t, reply[4], "the permit is held")
	require.Zero(t, rdb.Exists(t.Context(), name).Val())
	record := []string{name, keys[1], name + ":record", name + ":other"}
	set, err := scripts.PermitEdit.Run(t.Context(), rdb, record, "try", 5, "PUBLISH", "c", 60_000, 0).Int()
	require.NoError(t, err)
	require.Equal(t, 1, set)
	require.Equal(t, "5", rdb.Get(t.Context(), name).Val())
}

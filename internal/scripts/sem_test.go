package scripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// sem is a semaphore of one process, whose lanes are numbered.
type sem struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string

	channel string
	line    string // what stands before the parts of the keys of its line
}

func newSem(t *testing.T) sem {
	t.Helper()
	name := redistest.Name(t)
	return sem{t: t, rdb: redistest.Shared(t).Client(t), name: name, channel: scripts.SemChannel(name)}
}

func (s sem) part(p string) string { return scripts.SuffixName(s.name, p) }

func (s sem) run(script *scripts.Script, keys []string, args ...any) []int64 {
	s.t.Helper()
	got, err := script.Run(s.t.Context(), s.rdb, keys, args...).Int64Slice()
	require.NoError(s.t, err)
	return got
}

func (s sem) one(script *scripts.Script, keys []string, args ...any) int64 {
	s.t.Helper()
	got, err := script.Run(s.t.Context(), s.rdb, keys, args...).Int64()
	require.NoError(s.t, err)
	return got
}

// twice runs a script as a client does whose first reply was lost: the second execution answers as the first
// did and changes nothing.
func (s sem) twice(script *scripts.Script, keys []string, args ...any) []int64 {
	s.t.Helper()
	first, before := s.run(script, keys, args...), s.state()
	require.Equal(s.t, first, s.run(script, keys, args...))
	require.Equal(s.t, before, s.state())
	return first
}

// state is the free permits and the ids that are held.
func (s sem) state() string {
	return fmt.Sprint(s.rdb.Get(s.t.Context(), s.name).Val(), s.rdb.ZRange(s.t.Context(), s.part("timeout"), 0, -1).Val())
}

func (s sem) free() string { return s.rdb.Get(s.t.Context(), s.name).Val() }

func (s sem) put(n int) { s.rdb.Set(s.t.Context(), s.name, n, 0) }

func (s sem) acquire(seq, confirmed int, wants ...int) []int64 {
	args := []any{seq, confirmed, 60_000, "PUBLISH", s.channel, 0, ""}
	for _, n := range wants {
		args = append(args, n)
	}
	reply := s.twice(scripts.SemAcquire, []string{s.name, s.part("acquiring")}, args...)
	require.Len(s.t, reply, 4)
	require.EqualValues(s.t, -1, reply[3], "it does not expire")
	return reply[:3]
}

func (s sem) release(seqNMax ...int) []int64 {
	args := []any{60_000, "PUBLISH", s.channel, 0, ""}
	for i := 0; i < len(seqNMax); i += 3 {
		args = append(args, seqNMax[i], seqNMax[i+1], 0, seqNMax[i+2])
	}
	return s.twice(scripts.SemRelease, []string{s.name, s.part("releasing")}, args...)
}

// Guarantees: S20.
func TestSemAcquire(t *testing.T) {
	t.Parallel()

	t.Run("serves the longest prefix that fits, once", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		require.Equal(t, []int64{0, 0, 0}, s.acquire(1, 0, 1))
		s.put(5)
		require.Equal(t, []int64{2, 1, 1}, s.acquire(2, 1, 1, 3, 2, 1))
		require.Equal(t, "1", s.free())
		require.Positive(t, s.rdb.PTTL(t.Context(), s.part("acquiring")).Val(), "the lane expires")
	})

	t.Run("gives back what a call took whose sender never learned of it", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		s.put(5)
		require.Equal(t, []int64{1, 1, 3}, s.acquire(7, 6, 2))
		require.Equal(t, []int64{1, 1, 3}, s.acquire(8, 6, 2), "only 6 is known")
		require.Equal(t, []int64{0, 1, 5}, s.acquire(9, 6), "a question is enough")
		require.Equal(t, []int64{1, 1, 0}, s.acquire(10, 9, 5))
	})

	t.Run("gives back nothing to permits that were set after the call that took some", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		set := func(record string, n int) {
			keys := []string{s.name, s.part(record), s.part("fair:permits"), s.part("origin")}
			require.EqualValues(t, 1, s.one(scripts.SemEdit, keys, "set", n, "PUBLISH", "c", 60_000, 0, 60_000))
		}
		acquire := func(seq int) []int64 {
			keys := []string{s.name, s.part("acquiring"), s.part("origin")}
			return s.run(scripts.SemAcquire, keys, seq, 6, 60_000, "PUBLISH", "c", 0, "")[:3]
		}
		set("1", 5)
		require.Equal(t, []int64{1, 1, 1}, s.acquire(7, 6, 4))
		require.Equal(t, []int64{0, 1, 5}, acquire(8), "nothing was set since")
		require.Equal(t, []int64{1, 1, 1}, s.acquire(9, 8, 4))
		s.rdb.PExpire(t.Context(), s.part("acquiring"), 50*time.Second) // ten seconds pass
		s.rdb.Del(t.Context(), s.name)
		set("2", 3)
		require.Equal(t, []int64{0, 1, 3}, acquire(10))
		require.Equal(t, "3", s.free())
	})

	t.Run("takes nothing more when a copy comes after permits have been added", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		s.put(5)
		require.Equal(t, []int64{1, 1, 1}, s.acquire(2, 1, 4, 4))
		s.put(11)
		require.Equal(t, []int64{1, 1, 11}, s.acquire(2, 1, 4, 4))
		require.Equal(t, "11", s.free())
	})

	t.Run("refuses a call that comes after a later one", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		s.put(5)
		s.acquire(4, 3, 1)
		err := scripts.SemAcquire.Run(t.Context(), s.rdb, []string{s.name, s.part("acquiring")}, 3, 2, 60_000, "PUBLISH", "c", 0, "", 1).Err()
		require.True(t, redis.HasErrorPrefix(err, "STALE"), "%v", err)
		require.Equal(t, "4", s.free())
	})
}

func TestSemRelease(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	require.Equal(t, []int64{1, 1}, s.release(1, 2, 0, 2, 3, 0))
	require.Equal(t, "5", s.free())
	require.Equal(t, []int64{1, -1, 1}, s.release(3, 1, 6, 4, 1, 6, 5, 0, 6))
	require.Equal(t, "6", s.free())
	// One that was not confirmed is carried by the next call, and added once.
	require.Equal(t, []int64{-1, 1, 1}, s.release(4, 1, 6, 5, 0, 6, 6, 2, 0))
	require.Equal(t, "8", s.free())
	// Only where there is a semaphore.
	none := newSem(t)
	keys := []string{none.name, none.part("releasing")}
	require.Equal(t, []int64{0}, none.twice(scripts.SemRelease, keys, 60_000, "PUBLISH", "c", 0, "", 1, 4, 1, 0))
	require.Empty(t, none.free())
}

func TestSemEdit(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	edit := func(record, op string, n int) int64 {
		t.Helper()
		keys := []string{s.name, s.part(record), s.part("fair:permits"), s.part("origin")}
		args := []any{op, n, "PUBLISH", scripts.SemChannel(s.name), 60_000, 0, 60_000}
		first, before := s.one(scripts.SemEdit, keys, args...), s.state()
		require.Equal(t, first, s.one(scripts.SemEdit, keys, args...))
		require.Equal(t, before, s.state())
		return first
	}
	require.EqualValues(t, 0, edit("1", "drain", 0))
	require.EqualValues(t, 1, edit("2", "set", 4))
	require.True(t, s.rdb.PExpire(t.Context(), s.name, time.Minute).Val())
	require.EqualValues(t, 0, edit("3", "set", 9))
	require.EqualValues(t, -3, edit("4", "add", -7))
	require.EqualValues(t, -3, edit("5", "drain", 0))
	require.EqualValues(t, 2, edit("6", "add", 2))
	require.Positive(t, s.rdb.PTTL(t.Context(), s.name).Val(), "the expiry is kept")
}

const (
	idA = "aaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbb"
	idC = "cccccccccccccccc"
)

func (s sem) permitKeys() []string {
	return []string{s.name, s.part("timeout"), s.part("fence")}
}

// take asks for permits by ids, each request as one word of ids.
func (s sem) take(ttl int, requests ...string) []int64 {
	args := []any{"PUBLISH", scripts.SemChannel(s.name), 60_000, 0, len(strings.Join(requests, "")) / 16, 0, ""}
	for _, ids := range requests {
		args = append(args, ttl, len(ids)/16)
		for id := ids; id != ""; id = id[16:] {
			args = append(args, id[:16])
		}
	}
	return s.run(scripts.PermitAcquire, s.permitKeys(), args...)
}

func (s sem) back(all int, ids ...any) []int64 {
	keys := []string{s.name, s.part("timeout")}
	return s.run(scripts.PermitRelease, keys, append([]any{"PUBLISH", scripts.SemChannel(s.name), all, 0}, ids...)...)
}

func TestPermitAcquire(t *testing.T) {
	t.Parallel()

	t.Run("serves the longest prefix that fits, under ids of the client, once", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		require.Equal(t, []int64{0, 0, 0, -1, 0}, s.take(1000, idA))
		s.put(3)
		got := s.take(60_000, idA+idB, idC+strings.Repeat("d", 16), strings.Repeat("e", 16))
		require.Equal(t, []int64{1, 1, 2}, got[:3])
		require.Greater(t, got[4], time.Now().Add(-time.Hour).UnixMicro(), "a token follows the server's clock")
		require.Equal(t, []int64{0, 0}, got[5:])
		before := s.state()
		again := s.take(60_000, idA+idB)
		require.Positive(t, again[4], "known by its id")
		require.Greater(t, again[4], got[4])
		require.Equal(t, before, s.state())
	})

	t.Run("takes back what has expired, and tells when the next lease ends", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		s.put(0)
		now := s.rdb.Time(t.Context()).Val().UnixMilli()
		s.rdb.ZAdd(t.Context(), s.part("timeout"), redis.Z{Score: float64(now), Member: idA}, redis.Z{Score: float64(now + 60_000), Member: idB})
		got := s.take(30_000, idC, strings.Repeat("d", 16))
		require.Equal(t, []int64{1, 0, 2}, got[:3])
		require.InDelta(t, 30_000, got[3], 1)
		require.Positive(t, got[4])
	})

	t.Run("never grants more than there are where more are held", func(t *testing.T) {
		t.Parallel()
		s := newSem(t)
		s.put(-1)
		require.Equal(t, []int64{1, -1, 0, -1, 0}, s.take(1000, idA))
	})
}

func TestPermitRelease(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(3)
	s.take(60_000, idA+idB)
	require.Equal(t, []int64{0, 0}, s.back(1, idA, idC), "all or none")
	require.Equal(t, []int64{1, 0}, s.back(0, idA, idC))
	require.Equal(t, []int64{0, 0}, s.back(0, idA, idC), "again: nothing")
	require.Equal(t, "2", s.free())
	require.Equal(t, []int64{1}, s.back(1, idB))
	require.Equal(t, "3", s.free())
	// Where the counter has gone, none is made.
	s.take(60_000, idA)
	s.rdb.Del(t.Context(), s.name)
	require.Equal(t, []int64{1}, s.back(0, idA))
	require.Zero(t, s.rdb.Exists(t.Context(), s.name).Val())
}

func TestPermitRenew(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(2)
	s.take(60_000, idA)
	keys := []string{s.part("timeout")}
	left := func() float64 {
		due := s.rdb.ZScore(t.Context(), keys[0], idA).Val()
		return due - float64(s.rdb.Time(t.Context()).Val().UnixMilli())
	}
	require.Equal(t, []int64{1, 0}, s.twice(scripts.PermitRenew, keys, "GT", 0, 1000, 1, idA, 1000, 1, idB))
	require.Greater(t, left(), 50_000.0, "a late renewal does not shorten")
	require.Equal(t, []int64{1}, s.twice(scripts.PermitRenew, keys, "XX", 0, 1000, 1, idA))
	require.LessOrEqual(t, left(), 1000.0)
	s.rdb.ZAdd(t.Context(), keys[0], redis.Z{Score: 1, Member: idA})
	require.Equal(t, []int64{0}, s.run(scripts.PermitRenew, keys, "GT", 0, 1000, 1, idA), "what has expired is not revived")
	require.InDelta(t, 1, s.rdb.ZScore(t.Context(), keys[0], idA).Val(), 0)
}

func TestPermitEdit(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	edit := func(record, op string, n int) int64 {
		t.Helper()
		keys := []string{s.name, s.part("timeout"), s.part(record), s.part("fair:permits")}
		args := []any{op, n, "PUBLISH", scripts.SemChannel(s.name), 60_000, 0}
		first, before := s.one(scripts.PermitEdit, keys, args...), s.state()
		require.Equal(t, first, s.one(scripts.PermitEdit, keys, args...))
		require.Equal(t, before, s.state())
		return first
	}
	require.EqualValues(t, 1, edit("1", "try", 0))
	require.EqualValues(t, 0, edit("2", "try", 5), "none were set too")
	edit("3", "set", 5)
	s.take(60_000, idA+idB)
	edit("4", "set", 1)
	require.Equal(t, "-1", s.free(), "two are held")
	edit("5", "add", 3)
	require.Equal(t, "2", s.free())
}

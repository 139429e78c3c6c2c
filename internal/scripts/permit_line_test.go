package scripts_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// hears subscribes the channel of a process that waits.
func (s sem) hears(process string) *redis.PubSub {
	s.t.Helper()
	sub := s.rdb.Subscribe(s.t.Context(), s.channel+":"+process)
	s.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(s.t.Context())
	require.NoError(s.t, err)
	return sub
}

// waits asks for permits from the place of a process in the line, and returns how many requests were served, and the
// place. The requests have waited for so long, 200 ms less for each of them than for the one before.
func (s sem) waits(process string, seq int, waited time.Duration, wants ...int) (served, place int64) {
	s.t.Helper()
	var times []string
	for i := range wants {
		times = append(times, fmt.Sprint(waited.Milliseconds()-int64(200*i)))
	}
	args := []any{
		seq, seq - 1, 60_000, "PUBLISH", s.channel, 0,
		process + ":1 90000 " + "="[:min(seq-1, 1)] + strings.Join(times, ","),
	}
	for _, n := range wants {
		args = append(args, n)
	}
	reply := s.run(scripts.SemAcquire, []string{s.name, s.part("acquiring:" + process)}, args...)
	return reply[0], reply[4]
}

// waiters returns those in the line, the first one first.
func (s sem) waiters() []string {
	s.t.Helper()
	return s.rdb.ZRange(s.t.Context(), s.part(s.line+"waiting"), 0, -1).Val()
}

// keptForAnHour returns what is kept for one waiter, and has it kept for an hour, however slow the machine is.
func (s sem) keptForAnHour() string {
	s.t.Helper()
	record := s.rdb.Get(s.t.Context(), s.part(s.line+"kept")).Val()
	_, what, _ := strings.Cut(record, " ")
	record = fmt.Sprint(time.Now().Add(time.Hour).UnixMilli(), " ", what)
	require.NoError(s.t, s.rdb.Set(s.t.Context(), s.part(s.line+"kept"), record, time.Hour).Err())
	return record
}

// Two large requests, each of which was first for a while, do not keep a part of the permits each and wait for the part
// of the other.
func TestPermitLine_LargeRequestsDoNotShareWhatIsKept(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	heard := s.hears("b")
	s.put(0)
	_, place := s.waits("b", 1, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, place)
	s.release(1, 1, 0) // one is kept for b, which is woken
	_, place = s.waits("a", 1, 900*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "b was woken")
	s.release(2, 2, 0)
	_, place = s.waits("a", 2, 900*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "two are left to a")
	_, place = s.waits("b", 2, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, place, "b is before a")

	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
		message, err := heard.ReceiveMessage(ctx)
		cancel()
		require.NoError(t, err)
		require.Equal(t, "0 b:1", message.Payload, "by the release, and as all three are left to it now")
	}
	served, place := s.waits("b", 3, 1000*time.Millisecond, 3)
	require.EqualValues(t, 1, served)
	require.EqualValues(t, -1, place)
	require.Equal(t, "0", s.free())
}

// A waiter that asks without having been woken, and is served, leaves the line.
func TestPermitLine_AWaiterThatIsServedLeavesIt(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(0)
	_, place := s.waits("a", 1, time.Second, 1)
	require.EqualValues(t, 1, place)
	s.put(1)
	served, place := s.waits("a", 2, time.Second, 1)
	require.EqualValues(t, 1, served)
	require.EqualValues(t, -1, place)
	require.Empty(t, s.waiters())
}

// A process takes what was kept for it, and has another request. Others have taken nothing, so that the next permit is
// kept for it as well. If others had, nothing would be kept for a second.
func TestPermitLine_AProcessWithMoreRequestsTakesWhatWasKeptForItItself(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	s.put(0)
	_, place := s.waits("a", 1, time.Second, 1, 1)
	require.EqualValues(t, 1, place)
	s.release(1, 1, 0)
	served, place := s.waits("a", 2, time.Second, 1, 1)
	require.EqualValues(t, 1, served)
	require.EqualValues(t, 1, place, "for the second request")
	s.release(2, 1, 0)
	require.Contains(t, s.rdb.Get(t.Context(), s.part(s.line+"kept")).Val(), " 1 a:1")

	s.put(0) // another takes it
	_, place = s.waits("a", 3, time.Second, 1)
	require.EqualValues(t, 1, place)
	s.release(3, 1, 0)
	require.NotContains(t, s.rdb.Get(t.Context(), s.part(s.line+"kept")).Val(), "a:1")
}

// Permits that become free while a large request has been woken, and has not asked yet, are not given to those behind it.
func TestPermitLine_ALargeRequestThatWasWokenIsNotOvertaken(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	s.hears("b")
	s.put(0)
	s.waits("a", 1, 1000*time.Millisecond, 2)
	s.waits("b", 1, 900*time.Millisecond, 1)
	s.release(1, 1, 0)
	require.Equal(t, []string{"b:1"}, s.waiters(), "a was woken")
	require.Contains(t, s.keptForAnHour(), " 1 2 a:1")
	s.release(2, 1, 0)
	require.Equal(t, []string{"b:1"}, s.waiters(), "b was not")
}

// A waiter that asks again keeps its place, although its message took longer than the first one.
func TestPermitLine_AMessageThatTakesLongMovesNobodyBack(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	s.put(0)
	s.waits("a", 1, time.Second, 1)
	place := s.rdb.ZScore(t.Context(), s.part(s.line+"waiting"), "a:1").Val() - 20 // as if it had been there 20 ms ago
	require.NoError(t, s.rdb.ZAdd(t.Context(), s.part(s.line+"waiting"), redis.Z{Score: place, Member: "a:1"}).Err())
	s.waits("a", 2, time.Second, 1)
	require.InDelta(t, place, s.rdb.ZScore(t.Context(), s.part(s.line+"waiting"), "a:1").Val(), 1)
}

// What is freed is kept for the first in the line, once it has waited: a caller that comes then gets nothing of it.
func TestPermitLine_WhatIsFreedIsKeptForTheFirst(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.hears("a")
	s.put(0)
	s.waits("a", 1, time.Second, 1)
	s.release(1, 1, 0)
	require.Contains(t, s.keptForAnHour(), " 1 1 a:1")
	args := []any{1, 0, 60_000, "PUBLISH", s.channel, 0, "", 1}
	require.Zero(t, s.run(scripts.SemAcquire, []string{s.name, s.part("acquiring:b")}, args...)[0])
	served, _ := s.waits("a", 2, time.Second, 1)
	require.EqualValues(t, 1, served)
}

// A release wakes as many waiters as it may serve, however many before them are gone. It reads the line in pages.
func TestPermitLine_AReleaseWakesAllThatItMayServe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ gone, alive, freed int }{{0, 5, 4}, {2, 2, 1}, {4, 2, 1}, {102, 2, 1}, {103, 4, 3}} {
		t.Run(fmt.Sprintf("%d are gone, %d alive, %d freed", c.gone, c.alive, c.freed), func(t *testing.T) {
			t.Parallel()
			s := newSem(t)
			s.put(0)
			var waiters []string
			for i := range c.gone + c.alive {
				process := fmt.Sprintf("p%03d", i)
				if i >= c.gone {
					s.hears(process)
				}
				s.waits(process, 1, time.Hour-time.Duration(i)*time.Second, 1)
				waiters = append(waiters, process+":1")
			}
			require.Equal(t, waiters, s.waiters())
			s.release(1, c.freed, 0)
			require.Equal(t, waiters[c.gone+c.freed:], s.waiters())
		})
	}
}

// A waiter that gives up leaves the line at once, also while nothing is free.
func TestPermitLine_AWaiterThatGivesUpLeaves(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(0)
	s.waits("a", 1, time.Second, 1)
	s.waits("b", 1, 900*time.Millisecond, 1)
	require.Equal(t, []string{"a:1", "b:1"}, s.waiters())
	s.one(scripts.SemLeave, []string{s.name}, "a:1", "PUBLISH", s.channel)
	require.Equal(t, []string{"b:1"}, s.waiters())
}

// newFairSem returns a counter whose line nobody overtakes.
func newFairSem(t *testing.T) sem {
	t.Helper()
	s := newSem(t)
	s.channel, s.line = scripts.PrefixName("cogwheel_fair", s.name), "fair:"
	return s
}

// While more requests wait in the process that is woken, those behind it are not woken: some of its requests may have
// come before theirs. When it has asked, they are.
// Guarantees: S7.
func TestFairLine_NobodyIsWokenBehindAProcessInWhichMoreWait(t *testing.T) {
	t.Parallel()
	s := newFairSem(t)
	s.hears("a")
	s.hears("b")
	s.hears("c")
	s.put(0)
	s.waits("a", 1, 5_000*time.Millisecond, 1, 1, 1) // the others came 200 and 400 ms later
	s.waits("b", 1, 3_000*time.Millisecond, 1)
	s.release(1, 1, 0)
	require.Equal(t, []string{"b:1"}, s.waiters(), "a was woken")
	require.Contains(t, s.keptForAnHour(), " a:1")
	s.release(2, 3, 0)
	require.Equal(t, []string{"b:1"}, s.waiters(), "b was not, although four are free")
	served, _ := s.waits("c", 1, 0, 1)
	require.Zero(t, served)
	served, _ = s.waits("a", 2, 5_000*time.Millisecond, 1, 1, 1)
	require.EqualValues(t, 3, served)
	require.Equal(t, []string{"c:1"}, s.waiters(), "b was woken")
	served, _ = s.waits("b", 2, 3_000*time.Millisecond, 1)
	require.EqualValues(t, 1, served)
}

// A process that is woken is granted its other requests too, if they came before the first one of the next process.
func TestFairLine_AProcessGetsWhatCameBeforeTheNext(t *testing.T) {
	t.Parallel()
	s := newFairSem(t)
	s.hears("a")
	s.hears("b")
	s.put(0)
	s.waits("a", 1, 5_000*time.Millisecond, 1, 1, 1) // the others came 200 and 400 ms later
	s.waits("b", 1, 4_700*time.Millisecond, 1)       // between them
	s.release(1, 4, 0)
	require.Equal(t, []string{"b:1"}, s.waiters())
	s.keptForAnHour()
	served, place := s.waits("a", 2, 5_000*time.Millisecond, 1, 1, 1)
	require.EqualValues(t, 2, served)
	require.EqualValues(t, 2, place, "its third came after b's")
	require.Empty(t, s.waiters(), "b was woken, and a again for its third: each has its own permit")
	served, _ = s.waits("b", 2, 4_700*time.Millisecond, 1)
	require.EqualValues(t, 1, served)
}

// Processes with one request each are woken together, each for its own permit.
// Guarantees: S7.
func TestFairLine_ProcessesWithOneRequestEachAreWokenTogether(t *testing.T) {
	t.Parallel()
	s := newFairSem(t)
	for _, process := range []string{"a", "b", "c"} {
		s.hears(process)
	}
	s.put(0)
	s.waits("a", 1, 5_000*time.Millisecond, 1)
	s.waits("b", 1, 4_000*time.Millisecond, 1)
	s.waits("c", 1, 3_000*time.Millisecond, 1)
	s.release(1, 2, 0)
	require.Equal(t, []string{"c:1"}, s.waiters())
}

// Permits that are free, but not for a caller that has just come, wake those before it.
func TestFairLine_ACallerThatMayNotTakeAPermitWakesTheFirst(t *testing.T) {
	t.Parallel()
	s := newFairSem(t)
	heard := s.hears("a")
	s.put(0)
	s.waits("a", 1, time.Second, 1)
	s.put(1) // as if the message to a was lost
	args := []any{1, 0, 60_000, "PUBLISH", s.channel, 0, "", 1}
	require.Zero(t, s.run(scripts.SemAcquire, []string{s.name, s.part("acquiring:b")}, args...)[0])
	ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
	defer cancel()
	message, err := heard.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "0 a:1", message.Payload)
}

// The place of a request that gave up is not that of the next one of its process.
func TestFairLine_ThePlaceOfARequestThatGaveUpIsGone(t *testing.T) {
	t.Parallel()
	s := newFairSem(t)
	s.hears("a")
	s.hears("b")
	s.put(0)
	s.waits("a", 1, 5_000*time.Millisecond, 1, 1)
	s.waits("b", 1, 4_995*time.Millisecond, 1)
	args := []any{2, 1, 60_000, "PUBLISH", s.channel, 0, "a:1 90000 4990", 1}
	place := s.run(scripts.SemAcquire, []string{s.name, s.part("acquiring:a")}, args...)[4]
	require.EqualValues(t, 2, place)
	require.Equal(t, []string{"b:1", "a:1"}, s.waiters())
}

// A release tells the waiter of its own process by its reply, and not by a message. If that one is alone, it stays in the
// line; otherwise it leaves, what it wants is kept for it, and the next one is its guard.
func TestPermitLine_AReleaseTellsItsOwnProcessByTheReply(t *testing.T) {
	t.Parallel()
	for what, release := range map[string]func(s sem, waiter string) int64{
		"of counted permits": func(s sem, waiter string) int64 {
			args := []any{60_000, "PUBLISH", s.channel, 0, waiter, time.Now().UnixMicro(), 1, 0, 0}
			return s.run(scripts.SemRelease, []string{s.name, s.part("releasing")}, args...)[0]
		},
		"of a leased permit": func(s sem, waiter string) int64 {
			s.rdb.ZAdd(s.t.Context(), s.part("timeout"), redis.Z{Score: 1e14, Member: idA})
			args := []any{"PUBLISH", s.channel, waiter, 0, idA}
			return s.run(scripts.PermitRelease, []string{s.name, s.part("timeout")}, args...)[0]
		},
		"of a leased permit among others": func(s sem, waiter string) int64 {
			s.rdb.ZAdd(s.t.Context(), s.part("timeout"), redis.Z{Score: 1e14, Member: idA})
			args := []any{"PUBLISH", 0, s.channel, waiter, idA}
			return s.run(scripts.PermitsRelease, []string{s.name, s.part("timeout")}, args...)[0]
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSem(t)
			hearA, hearB := s.hears("a"), s.hears("b")
			heard := func(sub *redis.PubSub) string {
				ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
				defer cancel()
				message, err := sub.ReceiveMessage(ctx)
				require.NoError(t, err)
				return message.Payload
			}
			s.put(0)
			require.EqualValues(t, 1, release(s, "a:1"), "it is not in the line")
			s.put(0)
			s.waits("a", 1, time.Second, 1)
			require.EqualValues(t, 1+2, release(s, "a:1"), "it is alone")
			require.Equal(t, []string{"a:1"}, s.waiters())
			require.Empty(t, s.rdb.Get(t.Context(), s.part("kept")).Val())

			s.put(0)
			s.waits("b", 1, 500*time.Millisecond, 1)
			require.EqualValues(t, 1+2, release(s, "a:1"))
			require.Equal(t, "60 b:1", heard(hearB))
			require.Equal(t, []string{"b:1"}, s.waiters())
			require.Contains(t, s.keptForAnHour(), " 1 1 a:1")

			s.rdb.Del(t.Context(), s.part("kept"))
			s.put(0)
			s.waits("a", 2, 200*time.Millisecond, 1)
			require.EqualValues(t, 1, release(s, "a:1"), "another is before it")
			require.Equal(t, "0 b:1", heard(hearB))
			require.Equal(t, "60 a:1", heard(hearA), "the only message to it: as the guard of the other")
		})
	}
}

// A release that was executed before has told the waiter of its process, and its reply is lost. So the second execution
// tells it again.
func TestPermitLine_ARepeatedReleaseTellsItsOwnProcessAgain(t *testing.T) {
	t.Parallel()
	s := newSem(t)
	s.put(0)
	args := []any{60_000, "PUBLISH", s.channel, 0, "a:1", 1, 1, 0, 0}
	keys := []string{s.name, s.part("releasing")}
	s.hears("a")
	s.waits("a", 1, time.Second, 1)
	require.Equal(t, []int64{1 + 2}, s.run(scripts.SemRelease, keys, args...))
	require.Equal(t, []int64{1 + 2}, s.run(scripts.SemRelease, keys, args...))
	require.Equal(t, "1", s.free())
}

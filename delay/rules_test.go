package delay_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRules_ATaskScheduledWhileOneOfItsIDRunsIsKept(t *testing.T) {
	t.Parallel()
	ends := map[string]func(p *process, a claimedTask){
		"done":   func(p *process, a claimedTask) { p.end(2, "done", a) },
		"again":  func(p *process, a claimedTask) { p.end(2, "again", a, time.Hour.Microseconds()) },
		"failed": func(p *process, a claimedTask) { p.end(2, "failed", a) },
		"back":   func(p *process, a claimedTask) { p.end(2, "back", a) },
		"lost":   func(p *process, a claimedTask) { p.loseLease(a.id) },
	}
	for how, end := range ends {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "first")...)
		a := p.claim(1)
		p.edit(2, schedule("a", 0, "second")...)
		_, none := p.other().work(1, 10)
		require.Empty(t, none, "not while the first one runs")
		p.edit(3, append(schedule("a", 0, "third"), []any{"schedule", "a", 0, "absent", 0, ":fourth"}...)...)
		end(p, a)
		third := p.claim(3)
		require.Equal(t, "::third", third.text, how)
		require.Zero(t, third.failures+third.losses, how)
		require.Greater(t, third.token, a.token, how)
		p.end(4, "done", third)
		require.Empty(t, p.tasks(), how)
	}
}

func TestRules_NoAttemptFollowsACancelledOne(t *testing.T) {
	t.Parallel()
	ends := map[string]func(p *process, a claimedTask){
		"done":   func(p *process, a claimedTask) { p.end(3, "done", a) },
		"again":  func(p *process, a claimedTask) { p.end(3, "again", a, 0) },
		"failed": func(p *process, a claimedTask) { p.end(3, "failed", a) },
		"back":   func(p *process, a claimedTask) { p.end(3, "back", a) },
		"lost": func(p *process, a claimedTask) {
			p.loseLease(a.id)
			_, found := p.work(3, 10)
			require.Empty(p.t, found)
		},
	}
	for how, end := range ends {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(2)
		require.Equal(t, []int64{0}, p.edit(2, request("cancel", "a")...), how)
		end(p, a)
		require.Empty(t, p.tasks(), how)
	}
}

// The token of an id rises with each attempt, also if the last token is lost while the clock of Redis is set back.
func TestRules_TokensRise(t *testing.T) {
	t.Parallel()
	steps := map[string]func(p *process, a claimedTask){
		"after a failure":       func(p *process, a claimedTask) { p.end(2, "again", a, 0) },
		"after a lost lease":    func(p *process, a claimedTask) { p.loseLease("a") },
		"after it was returned": func(p *process, a claimedTask) { p.end(2, "back", a) },
		"of the next task": func(p *process, a claimedTask) {
			p.edit(2, schedule("a", 0, "next")...)
			p.end(2, "done", a)
		},
		"of a task that was retried": func(p *process, a claimedTask) {
			p.end(2, "failed", a)
			p.edit(2, request("retry", "a")...)
		},
		"of a task that replaces a failed one": func(p *process, a claimedTask) {
			p.end(2, "failed", a)
			p.edit(2, schedule("a", 0, "next")...)
		},
		"of a task that replaces one that waits for its next attempt": func(p *process, a claimedTask) {
			p.end(2, "again", a, time.Hour.Microseconds())
			p.edit(2, schedule("a", 0, "next")...)
		},
	}
	for what, step := range steps {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(1)
		p.back = time.Hour
		require.NoError(t, p.rdb.Del(t.Context(), p.key("token")).Err())
		step(p, a)
		require.Greater(t, p.claim(3).token, a.token, what)
	}

	t.Run("while the clock is set back", func(t *testing.T) {
		t.Parallel()
		p, last := newProcess(t), int64(0)
		for i := range 10 {
			p.edit(i+1, schedule("a", 0, "p")...)
			a := p.claim(2*i + 1)
			require.Greater(t, a.token, last)
			last = a.token
			p.end(2*i+2, "done", a)
			p.back += time.Hour
		}
	})

	t.Run("after a loss of the last token", func(t *testing.T) {
		t.Parallel()
		p, last := newProcess(t), int64(0)
		for i := range 10 {
			p.edit(i+1, schedule("a", 0, "p")...)
			a := p.claim(2*i + 1)
			require.Greater(t, a.token, last)
			last = a.token
			p.end(2*i+2, "done", a)
			require.NoError(t, p.rdb.Del(t.Context(), p.key("token")).Err())
		}
	})
}

// A lease that begins after the clock of Redis was set back is not longer than others.
func TestRules_LeasesEndAlthoughTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 1)
	p.back = time.Hour
	p.end(2, "back", found[0])
	p.claim(3)
	p.back -= 2 * 5 * time.Second
	again := p.other().claim(1)
	require.EqualValues(t, 1, again.losses)
}

func TestRules_TheNumberOfFailedTasksIsBounded(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.kept = 3
	var ids []string
	for i := range 10 {
		id := fmt.Sprint("task-", i)
		ids = append(ids, id)
		p.edit(i+1, schedule(id, 0, "p")...)
		p.end(2*i+2, "failed", p.claim(2*i+1))
		require.LessOrEqual(t, p.rdb.ZCard(t.Context(), p.key("failed")).Val(), int64(3))
	}
	require.Equal(t, ids[7:], p.rdb.ZRange(t.Context(), p.key("failed"), 0, -1).Val(), "the last ones")
	require.EqualValues(t, 3, p.rdb.HLen(t.Context(), p.key("tasks")).Val())
	require.EqualValues(t, 3, p.rdb.HLen(t.Context(), p.key("attempts")).Val())
	p.back = -2 * time.Hour
	p.work(30, 0)
	require.Empty(t, p.tasks(), "their time has passed")
}

func TestRules_ATaskWhoseLeaseIsLostTooOftenHasFailed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	for i := range 3 {
		require.EqualValues(t, i, p.claim(i+1).losses)
		p.loseLease("a")
	}
	_, found := p.work(4, 10)
	require.Empty(t, found)
	require.Equal(t, []string{"a"}, p.rdb.ZRange(t.Context(), p.key("failed"), 0, -1).Val())
}

// A debounce runs at the latest the longest wait after it was scheduled first, whichever call bounds it.
func TestRules_ALongestWaitCountsFromTheFirstCallThatSetsOne(t *testing.T) {
	t.Parallel()
	bounded := func(verb, text string) []any {
		return []any{verb, "a", time.Hour.Microseconds(), "replace", time.Minute.Microseconds(), text}
	}
	p := newProcess(t)
	p.back = time.Hour
	p.edit(1, schedule("a", 24*time.Hour, "p")...)
	p.edit(2, bounded("move", "")...)
	due := p.rdb.ZScore(t.Context(), p.key("due"), "a").Val()
	p.back -= 50 * time.Second
	p.edit(3, bounded("move", "")...)
	require.Equal(t, due, p.rdb.ZScore(t.Context(), p.key("due"), "a").Val())
	p.edit(4, bounded("schedule", ":new")...)
	require.Equal(t, due, p.rdb.ZScore(t.Context(), p.key("due"), "a").Val())
	p.back -= time.Minute
	a := p.claim(1)
	p.end(2, "failed", a)
	p.back -= time.Minute
	p.edit(5, bounded("schedule", ":again")...)
	_, found := p.work(3, 10)
	require.Empty(t, found, "the wait of a task that has failed is over")
}

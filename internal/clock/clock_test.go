package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inBubble runs f in a bubble with a Clock that reads m.
func inBubble(t *testing.T, f func(t *testing.T, m *clocktest.Clock, c *clock.Clock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := new(clocktest.Clock)
		time.Sleep(time.Hour)
		f(t, m, clock.New(m.Read))
	})
}

func TestClock(t *testing.T) {
	type event struct {
		passes        time.Duration
		suspend, step time.Duration
	}
	const s, m, h = time.Second, time.Minute, time.Hour
	for _, tt := range []struct {
		name        string
		before      []event // noticed
		then        []event // between the two times, none noticed
		elapsed     time.Duration
		ahead       time.Duration
		withoutBoot time.Duration // elapsed on a system that has no boot clock
	}{
		{"counts what the monotonic clock counts", nil, []event{{passes: s}}, s, 0, s},
		{"counts a suspend", nil, []event{{passes: s, suspend: h}}, s + h, 0, s + h},
		{"counts two suspends", nil, []event{{suspend: h}, {suspend: m}, {passes: s}}, s + m + h, 0, s + m + h},
		{"ignores a wall clock that is set ahead", nil, []event{{passes: s, step: m}}, s, m, s + m},
		{"ignores a wall clock that is set back", nil, []event{{passes: s, step: -m}}, s, -m, s},
		{"counts a suspend with a wall clock that is set ahead", nil, []event{{s, h, m}}, s + h, m, s + h + m},
		{"counts a suspend with a wall clock that is set back", nil, []event{{s, h, -2 * h}}, s + h, -2 * h, s},
		{"does not count an earlier suspend", []event{{suspend: h}}, []event{{passes: s}}, s, 0, s},
		{"ignores a step after an earlier suspend", []event{{suspend: h}}, []event{{s, 0, m}}, s, m, s + m},
		{"counts a suspend after an earlier step", []event{{step: h}}, []event{{s, m, 0}}, s + m, 0, s + m},
		{
			"ignores small steps that come to a large one", nil,
			[]event{{step: 6 * time.Millisecond}, {step: 6 * time.Millisecond}},
			0, 12 * time.Millisecond, 12 * time.Millisecond,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *clocktest.Clock, c *clock.Clock) {
				withoutBoot := clock.New(m.ReadWithoutBoot)
				apply := func(events []event, noticed bool) {
					for _, e := range events {
						time.Sleep(e.passes)
						m.Suspend(e.suspend)
						m.Step(e.step)
						require.True(t, !noticed || c.Notice(m.Now()) && withoutBoot.Notice(m.Now()))
					}
				}
				apply(tt.before, true)
				since := m.Now()
				apply(tt.then, false)
				now := m.Now()
				moved := tt.ahead != 0 || tt.elapsed != now.Sub(since)
				require.Equal(t, moved, c.Notice(now))
				require.Equal(t, moved, withoutBoot.Notice(now))
				require.False(t, c.Notice(m.Now()), "it was noticed before")
				require.Equal(t, tt.elapsed, c.Since(since, now))
				require.Equal(t, tt.ahead, c.Ahead(since, now))
				require.Equal(t, tt.withoutBoot, withoutBoot.Since(since, now))

				time.Sleep(time.Second)
				later := m.Now()
				require.False(t, c.Notice(later))
				require.Equal(t, tt.elapsed+time.Second, c.Since(since, later))
				require.Equal(t, time.Second, c.Since(now, later), "the later time counts from the new state")
			})
		})
	}

	t.Run("places a time between a suspend and its notice after the suspend", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *clocktest.Clock, c *clock.Clock) {
			before := m.Now()
			m.Suspend(time.Hour)
			after := m.Now()
			time.Sleep(time.Second)
			require.True(t, c.Notice(m.Now()))
			require.Equal(t, time.Hour+time.Second, c.Since(before, m.Now()))
			require.Equal(t, time.Second, c.Since(after, m.Now()))
		})
	})

	t.Run("counts too much rather than too little where it cannot know", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *clocktest.Clock, c *clock.Clock) {
			m.Suspend(time.Hour)
			between := m.Now()
			time.Sleep(time.Second)
			m.Suspend(time.Minute)
			require.True(t, c.Notice(m.Now()))
			require.Equal(t, time.Hour+time.Minute+time.Second, c.Since(between, m.Now()))
			for range 1000 { // more suspends than are remembered
				time.Sleep(time.Second)
				m.Suspend(time.Hour)
				require.True(t, c.Notice(m.Now()))
			}
			require.Equal(t, 1001*time.Hour+time.Minute+1001*time.Second, c.Since(between, m.Now()))
		})
	})

	t.Run("places a time without a monotonic reading by the wall clock", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *clocktest.Clock, c *clock.Clock) {
			m.Suspend(time.Hour)
			m.Step(time.Minute)
			require.True(t, c.Notice(m.Now()))
			since := m.Now().Round(0)
			time.Sleep(time.Second)
			require.Equal(t, time.Second, c.Since(since, m.Now()))
			m.Suspend(time.Hour)
			require.True(t, c.Notice(m.Now()))
			require.Equal(t, time.Hour+time.Second, c.Since(since, m.Now()))
		})
	})

	t.Run("reads the boot clock only when the wall clock has moved", func(t *testing.T) {
		inBubble(t, func(t *testing.T, m *clocktest.Clock, c *clock.Clock) {
			require.Equal(t, 1, m.Reads(), "when it was made")
			for range 100 {
				require.False(t, c.Notice(m.Now()))
				time.Sleep(time.Hour)
			}
			require.Equal(t, 1, m.Reads())
			m.Step(time.Second)
			for i := range 100 {
				require.Equal(t, i == 0, c.Notice(m.Now()))
			}
			require.Equal(t, 2, m.Reads())
		})
	})
}

func TestClock_IsNoticedByOneOfManyCallers(t *testing.T) {
	m := new(clocktest.Clock)
	c := clock.New(m.Read)
	for range 100 {
		m.Suspend(time.Hour)
		noticed := make(chan bool)
		for range 4 {
			go func() { noticed <- c.Notice(m.Now()) }()
		}
		n := 0
		for range 4 {
			if <-noticed {
				n++
			}
		}
		require.Equal(t, 1, n)
	}
	require.InDelta(t, 100*time.Hour, c.At(m.Now()), float64(time.Minute))
}

func TestReader(t *testing.T) {
	hasBoot := clock.Reader(time.Now)().HasBoot

	t.Run("reads the boot clock, which runs as the monotonic clock", func(t *testing.T) {
		if !hasBoot {
			t.Skip("this system has no boot clock that is known to count suspend")
		}
		read := clock.Reader(time.Now)
		a, b := read(), read()
		require.Positive(t, a.Boot)
		require.GreaterOrEqual(t, b.Boot, a.Boot)
	})

	t.Run("reads it if a clock of the machine has another wall clock", func(t *testing.T) {
		m := new(clocktest.Clock)
		m.Step(time.Hour)
		require.Equal(t, hasBoot, clock.Reader(m.Now)().HasBoot)
	})

	t.Run("leaves it alone for a fake clock", func(t *testing.T) {
		for _, now := range []func() time.Time{
			func() time.Time { return time.Unix(0, 0) },
			func() time.Time { return time.Now().Round(0) },
			func() time.Time { return time.Now().Add(time.Second) },
			func() time.Time { return time.Now().Add(-time.Second) },
		} {
			require.False(t, clock.Reader(now)().HasBoot)
		}
	})

	t.Run("leaves it alone in a bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			require.False(t, clock.Reader(time.Now)().HasBoot)
		})
		m := new(clocktest.Clock)
		c := clock.New(m.Read)
		synctest.Test(t, func(t *testing.T) {
			m.Step(time.Hour)
			require.False(t, c.Notice(time.Now()))
		})
		require.Equal(t, 1, m.Reads())
	})
}

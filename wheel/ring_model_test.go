package wheel_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// ringModel runs a ring beside a plain list of deadlines and compares them after each step.
type ringModel struct {
	ring     *wheel.Ring
	tick     int64
	now      int64
	deadline map[uint32]int64
}

func newRingModel(tick time.Duration, buckets int) *ringModel {
	return &ringModel{ring: wheel.NewRing(tick, buckets), tick: int64(tick), deadline: map[uint32]int64{}}
}

func (m *ringModel) add(delay int64) { m.deadline[m.ring.Add(m.now, m.now+delay)] = m.now + delay }

// pick names the n-th pending entry in an order that does not depend on the map's.
func (m *ringModel) pick(n int) (uint32, bool) {
	if len(m.deadline) == 0 {
		return 0, false
	}
	all := make([]uint32, 0, len(m.deadline))
	for i := range m.deadline {
		all = append(all, i)
	}
	slices.Sort(all)
	return all[n%len(all)], true
}

func (m *ringModel) stop(n int) {
	if i, ok := m.pick(n); ok {
		m.ring.Remove(i)
		delete(m.deadline, i)
	}
}

func (m *ringModel) reschedule(n int, delay int64) {
	if i, ok := m.pick(n); ok {
		m.ring.Reschedule(i, m.now, m.now+delay)
		m.deadline[i] = m.now + delay
	}
}

// advance lets time pass and checks what fires: nothing before its deadline, everything whose tick is over,
// and one tick after the other. It takes so many entries at a time.
func (m *ringModel) advance(by int64, size int) error {
	m.now += by
	due, _ := m.ring.AdvanceBy(m.now, size)
	if err := m.fired(due); err != nil {
		return err
	}
	for i, at := range m.deadline {
		if at/m.tick < m.now/m.tick {
			return fmt.Errorf("entry %d, due at %d, has not fired by %d", i, at, m.now)
		}
	}
	return m.check()
}

// begin lets time pass too, but takes no more than one call does, so that others come in between.
func (m *ringModel) begin(by int64, size int) error {
	m.now += by
	due, _ := m.ring.AdvanceOnce(m.now, size)
	if err := m.fired(due); err != nil {
		return err
	}
	return m.check()
}

func (m *ringModel) fired(due []uint32) error {
	latest := int64(0)
	for _, i := range due {
		at, pending := m.deadline[i]
		switch {
		case at/m.tick < latest/m.tick:
			return fmt.Errorf("entry %d, due at %d, fired after one due at %d", i, at, latest)
		case !pending:
			return fmt.Errorf("entry %d fired without being pending", i)
		case at > m.now:
			return fmt.Errorf("entry %d fired %d ns early", i, at-m.now)
		}
		delete(m.deadline, i)
		latest = max(latest, at)
	}
	return nil
}

func (m *ringModel) check() error {
	if m.ring.Live() != len(m.deadline) {
		return fmt.Errorf("%d entries live, want %d", m.ring.Live(), len(m.deadline))
	}
	earliest := wheel.Never
	for _, at := range m.deadline {
		earliest = min(earliest, max(at, m.now))
	}
	// Next may be earlier, never later than the end of the tick of the earliest entry.
	if next := m.ring.Next(); earliest != wheel.Never && next > (earliest/m.tick+1)*m.tick {
		return fmt.Errorf("next event at %d, but an entry is due at %d", next, earliest)
	}
	return m.ring.Check()
}

// delays that reach every part of a ring of n buckets: this tick, near, far, and remainingRounds left.
func delays(n int64, tick int64) *rapid.Generator[int64] {
	near, far := 64*n*tick, 64*32*n*tick
	return rapid.OneOf(
		rapid.Int64Range(0, 3*tick),
		rapid.Int64Range(0, near+2*tick),
		rapid.Int64Range(near-2*tick, far+near),
		rapid.Int64Range(0, 5*far),
	)
}

// Guarantees: W1.
func TestRing_BehavesAsASortedList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 8, 64, 512}).Draw(t, "buckets")
		tick := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond}).Draw(t, "tick")
		m := newRingModel(tick, n)
		delay := delays(int64(n), int64(tick))
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { m.add(delay.Draw(t, "delay")) },
			"add many": func(t *rapid.T) {
				d := delay.Draw(t, "delay")
				apart := rapid.Int64Range(0, 3*int64(tick)).Draw(t, "apart")
				for k := range rapid.Int64Range(10, 600).Draw(t, "count") {
					m.add(d + k*apart)
				}
			},
			"stop":       func(t *rapid.T) { m.stop(rapid.Int().Draw(t, "which") & 0xffff) },
			"reschedule": func(t *rapid.T) { m.reschedule(rapid.Int().Draw(t, "which")&0xffff, delay.Draw(t, "delay")) },
			"advance": func(t *rapid.T) {
				size := rapid.SampledFrom([]int{1, 2, 32, 256}).Draw(t, "at a time")
				require.NoError(t, m.advance(delay.Draw(t, "by"), size))
			},
			"begin": func(t *rapid.T) {
				size := rapid.SampledFrom([]int{1, 32}).Draw(t, "at a time")
				require.NoError(t, m.begin(delay.Draw(t, "by"), size))
			},
			"": func(t *rapid.T) { require.NoError(t, m.check()) },
		})
	})
}

// FuzzRing decodes operations on the model of TestRing_BehavesAsASortedList: the first byte is the geometry, and
// each operation takes four more.
// Guarantees: W1.
func FuzzRing(f *testing.F) {
	for _, seed := range []string{
		"\x00",
		"\x01\x00\x01\x00\x05\x00\xc8\x01\x09\x03\x00\x01\x00\x03\xff\x01\xff",                 // add, advance
		"\x01\x05\x30\x01\x00\x03\x01\x01\x20\x04\x00\x01\x40\x03\x07\x02\x01",                 // many, in parts
		"\x04\x00\x01\x02\x00\x00\x01\x02\x01\x00\xff\x02\xff\x03\x00\x02\x00\x03\x00\x02\x01", // at the end of a round
		"\x03\x00\x00\x03\x80\x02\x00\x00\x05\x01\x00\x00\x00\x03\x00\x03\xff",                 // far, moved near, stopped
		"\x02\x05\x80\x03\x40\x02\x10\x03\x10\x03\x00\x03\x30\x04\x00\x03\x31\x03\x40\x03\xff", // remaining rounds
		"\x09\x05\xff\x00\x00\x03\x00\x00\x01\x05\xff\x00\x01\x04\x00\x00\xff\x03\x00\x02\x00", // chunks given back
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) == 0 || len(ops) > 1000 {
			return
		}
		n := []int64{1, 2, 8, 64, 512}[ops[0]%5]
		tick := []time.Duration{time.Microsecond, time.Millisecond}[ops[0]/5%2]
		m := newRingModel(tick, int(n))
		near := 64 * n * int64(tick)
		for ops = ops[1:]; len(ops) >= 4; ops = ops[4:] {
			delay := []int64{int64(tick) / 64, int64(tick), near / 128, near}[ops[2]%4]*int64(ops[3]) + int64(ops[2]/4) - 1
			delay = max(0, delay)
			switch ops[0] % 6 {
			case 0:
				m.add(delay)
			case 1:
				m.stop(int(ops[1]))
			case 2:
				m.reschedule(int(ops[1]), delay)
			case 3:
				require.NoError(t, m.advance(delay, []int{1, 2, 32, 256}[ops[1]%4]))
			case 4:
				require.NoError(t, m.begin(delay, []int{1, 32}[ops[1]%2]))
			case 5:
				for k := range int64(ops[1]) {
					m.add(delay + k*int64(ops[0]/6)*int64(tick)/8)
				}
			}
			require.NoError(t, m.check())
		}
	})
}

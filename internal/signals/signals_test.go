package signals_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/signals"
)

func TestInPieces(t *testing.T) {
	t.Parallel()
	const entries = 5000
	var mu sync.Mutex
	m := map[int]int{}
	for i := range entries {
		m[i] = -i
	}
	view := func(k, v int) [2]int { return [2]int{k, v} }

	t.Run("yields each entry that stays once, while others come and go, and holds no lock meanwhile", func(t *testing.T) {
		seen := map[int]int{}
		for e := range signals.InPieces(&mu, m, view) {
			seen[e[0]]++
			mu.Lock()
			m[entries+len(seen)] = 0
			delete(m, entries+max(len(seen)-10, 0))
			mu.Unlock()
		}
		for i := range entries {
			require.Equal(t, 1, seen[i])
		}
	})

	t.Run("ends when its caller has enough", func(t *testing.T) {
		for _, enough := range []int{1, 256, 300} {
			n := 0
			for range signals.InPieces(&mu, m, view) {
				if n++; n == enough {
					break
				}
			}
			require.Equal(t, enough, n)
			require.True(t, mu.TryLock(), "it is free")
			mu.Unlock()
		}
	})

	t.Run("yields nothing of an empty map", func(t *testing.T) {
		t.Parallel()
		for range signals.InPieces(&mu, map[int]int(nil), view) {
			t.Error("an entry")
		}
	})
}

func TestRepeats(t *testing.T) {
	t.Parallel()
	var r signals.Repeats
	began := time.Now()
	for _, c := range []struct {
		at   time.Duration
		err  string
		want bool
	}{
		{0, "limit 100, usage 101", true},
		{time.Second, "limit 100, usage 102", false},
		{2 * time.Second, "EOF", true},
		{59 * time.Second, "limit 100, usage 103", false},
		{118 * time.Second, "limit 100, usage 104", false}, // the same outage
		{118 * time.Second, "EOF", true},                   // another one
		{178 * time.Second, "limit 100, usage 0", true},
	} {
		require.Equal(t, c.want, r.Changed(errors.New(c.err), began.Add(c.at)), "%v", c)
	}
	for i := range 1000 { // texts are forgotten, and do not accumulate
		require.True(t, r.Changed(errors.New(strings.Repeat("x", i+10)), began))
	}
}

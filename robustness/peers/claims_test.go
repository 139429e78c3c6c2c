package peers_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// instant is a reading of the monotonic clock, which all processes of a machine share.
type instant time.Duration

func now() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return instant(t.Nano())
}

func (i instant) add(d time.Duration) instant { return i + instant(d) }

// claim is the time in which a holder may believe that it alone has a lock: from the return of the call that took it
// to the instant before the release, to the end of the lease as its library tells it, or to its death, whichever comes
// first. A process that stands still claims no more for that.
type claim struct {
	name, library string
	begin, end    instant
}

func (c claim) String() string {
	return fmt.Sprintf("%s of %s: %v to %v", c.name, c.library, time.Duration(c.begin), time.Duration(c.end))
}

// byName returns the claims of each name in the order of their begins. Claims that had ended before they could begin
// are left out.
func byName(claims []claim) map[string][]claim {
	names := map[string][]claim{}
	for _, c := range claims {
		if c.begin < c.end {
			names[c.name] = append(names[c.name], c)
		}
	}
	for _, of := range names {
		slices.SortFunc(of, func(a, b claim) int { return cmp.Compare(a.begin, b.begin) })
	}
	return names
}

// overlaps returns the pairs of claims of one name that overlap, each with the one that reaches farthest before it.
func overlaps(claims []claim) (found [][2]claim) {
	for _, of := range byName(claims) {
		for i, last := 1, of[0]; i < len(of); i++ {
			if of[i].begin < last.end {
				found = append(found, [2]claim{last, of[i]})
			}
			if of[i].end > last.end {
				last = of[i]
			}
		}
	}
	return found
}

// longestPause returns the longest time in which nobody claimed a name, between its first claim and its last one.
func longestPause(claims []claim) (longest time.Duration, after claim) {
	for _, of := range byName(claims) {
		for i, last := 1, of[0]; i < len(of); i++ {
			if d := time.Duration(of[i].begin - last.end); d > longest {
				longest, after = d, last
			}
			if of[i].end > last.end {
				last = of[i]
			}
		}
	}
	return longest, after
}

func TestClaims(t *testing.T) {
	t.Parallel()
	of := func(name string, begin, end instant) claim { return claim{name, "a library", begin, end} }
	for _, c := range []struct {
		name     string
		claims   []claim
		overlaps int
		pause    time.Duration
	}{
		{"none", nil, 0, 0},
		{"one after the other", []claim{of("a", 20, 30), of("a", 0, 20), of("a", 35, 40)}, 0, 5},
		{"of two names", []claim{of("a", 0, 20), of("b", 10, 30)}, 0, 0},
		{"one that ended before it began", []claim{of("a", 0, 20), of("a", 10, 10)}, 0, 0},
		{"two at a time", []claim{of("a", 0, 20), of("a", 19, 30)}, 1, 0},
		{"one within another, and one after both", []claim{of("a", 0, 20), of("a", 5, 10), of("a", 12, 30), of("a", 31, 32)}, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Len(t, overlaps(c.claims), c.overlaps)
			pause, _ := longestPause(c.claims)
			require.Equal(t, c.pause, pause)
		})
	}
}

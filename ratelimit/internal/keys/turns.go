package keys

import (
	"math/rand/v2"
	"time"
)

// turns spreads the looks of processes that wait for a limit whose permits cannot be reserved. If the permits come back
// one by one and each process looked for each, a permit would cost as many scripts as there are processes. So a line
// aims at one of the next permits, of as many as it has rivals: one more with each that a rival has taken before it,
// and an eighth fewer with each look that was granted some. Both are slow, so that the lines find about the same number
// and none of them is served more often than the others.
type turns struct {
	rivals, skip int64
	aims         bool // the next look expects a permit: if there is none, a rival has taken it
}

const maxRivals = 1 << 10

// wait returns the time until the permit at which the line aims.
func (t *turns) wait(k *Knowledge, missing int64, now time.Duration) time.Duration {
	t.aims = true
	if d := k.Wait(missing, now); d == 0 {
		return 0
	}
	return k.Wait(missing+t.skip, now)
}

// looked records the answer to a look.
func (t *turns) looked(denied bool) {
	switch {
	case !denied:
		t.rivals -= (t.rivals + 7) / 8
	case t.aims:
		t.rivals = min(t.rivals+1, maxRivals)
	}
	t.skip, t.aims = rand.N(t.rivals+1), false
}

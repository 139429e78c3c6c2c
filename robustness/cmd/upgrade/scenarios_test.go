package main_test

import (
	"slices"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// side is the version that takes a step: in one direction the old one is first, in the other the new one.
type side int

const (
	first side = iota
	second
)

// step is a request and its result. The kind is by default that of the scenario.
type step struct {
	side side
	kind string
	do   string
	hold string
	n    int64
	want string
}

// scenario is for each of its kinds what a version writes, and how the other one reads it and goes on. Tokens of its
// grants rise. uses lists further kinds of its steps.
type scenario struct {
	kinds   []string
	uses    []string
	renewal bool // with short leases
	steps   []step
}

// A waiter looks again when the holder's lease ends. The end of a long lease is after the check gives up, so there a
// waiter gets what the other version releases only if that version tells it.
const (
	longLease  = 4 * redistest.Patience
	shortLease = 3 * redistest.SafeLease
)

var (
	// One holds, the other waits; each in turn.
	turns = []step{
		{first, "", "try", "a", 1, "granted"},
		{second, "", "try", "x", 1, "denied"},
		{second, "", "acquire", "b", 1, "waits"},
		{second, "", "pending", "b", 0, "waits"},
		{first, "", "release", "a", 0, "released"},
		{second, "", "await", "b", 0, "granted"},
		{first, "", "try", "x", 1, "denied"},
		{first, "", "acquire", "c", 1, "waits"},
		{first, "", "pending", "c", 0, "waits"},
		{second, "", "release", "b", 0, "released"},
		{first, "", "await", "c", 0, "granted"},
		{second, "", "try", "x", 1, "denied"},
		{first, "", "release", "c", 0, "released"},
		{second, "", "try", "d", 1, "granted"},
		{first, "", "try", "x", 1, "denied"},
		{second, "", "release", "d", 0, "released"},
	}

	// One renews a hold, for which the other waits.
	renewal = []step{
		{first, "", "try", "a", 3, "granted"},
		{second, "", "acquire", "b", 3, "waits"},
		{first, "", "outlive", "a", 0, "valid"},
		{second, "", "pending", "b", 0, "waits"},
		{second, "", "try", "x", 1, "denied"},
		{first, "", "release", "a", 0, "released"},
		{second, "", "await", "b", 0, "granted"},
		{second, "", "release", "b", 0, "released"},
	}

	renewedReader = []step{
		{first, "reader", "try", "a", 1, "granted"},
		{second, "writer", "acquire", "b", 1, "waits"},
		{first, "reader", "outlive", "a", 0, "valid"},
		{second, "writer", "pending", "b", 0, "waits"},
		{first, "reader", "release", "a", 0, "released"},
		{second, "writer", "await", "b", 0, "granted"},
		{second, "writer", "release", "b", 0, "released"},
	}

	// The other one sees the holder and frees the lock by force, and the holder learns of it.
	force = []step{
		{first, "", "try", "e", 1, "granted"},
		{second, "", "state", "", 0, "held"},
		{second, "", "force", "", 0, "freed"},
		{first, "", "lost", "e", 0, "lost"},
		{second, "", "try", "f", 1, "granted"},
		{first, "", "release", "e", 0, "lost"},
		{first, "", "try", "x", 1, "denied"},
		{first, "", "force", "", 0, "freed"},
		{second, "", "lost", "f", 0, "lost"},
		{first, "", "state", "", 0, "free"},
	}

	queue = []step{
		{first, "", "try", "g", 1, "granted"},
		{second, "", "acquire", "h", 1, "waits"},
		{first, "", "waiting", "", 0, "1 waiting"},
		{first, "", "acquire", "i", 1, "waits"},
		{second, "", "waiting", "", 0, "2 waiting"},
		{second, "", "acquire", "j", 1, "waits"},
		{first, "", "waiting", "", 0, "3 waiting"},
		{first, "", "release", "g", 0, "released"},
		{second, "", "await", "h", 0, "granted"},
		{first, "", "waiting", "", 0, "2 waiting"},
		{second, "", "release", "h", 0, "released"},
		{first, "", "await", "i", 0, "granted"},
		{second, "", "pending", "j", 0, "waits"},
		{first, "", "release", "i", 0, "released"},
		{second, "", "await", "j", 0, "granted"},
		{second, "", "release", "j", 0, "released"},
	}

	readers = []step{
		{first, "reader", "try", "a", 1, "granted"},
		{second, "reader", "try", "b", 1, "granted"},
		{first, "writer", "try", "x", 1, "denied"},
		{second, "writer", "try", "x", 1, "denied"},
		{second, "writer", "acquire", "c", 1, "waits"},
		{first, "reader", "release", "a", 0, "released"},
		{first, "writer", "try", "x", 1, "denied"},
		{second, "writer", "pending", "c", 0, "waits"},
		{second, "reader", "release", "b", 0, "released"},
		{second, "writer", "await", "c", 0, "granted"},
		{first, "reader", "try", "x", 1, "denied"},
		{first, "reader", "acquire", "d", 1, "waits"},
		{second, "writer", "release", "c", 0, "released"},
		{first, "reader", "await", "d", 0, "granted"},
		{second, "writer", "acquire", "e", 1, "waits"},
		{first, "reader", "release", "d", 0, "released"},
		{second, "writer", "await", "e", 0, "granted"},
		{first, "reader", "try", "x", 1, "denied"},
		{second, "writer", "release", "e", 0, "released"},
	}

	parts = []step{
		{first, "multi mutex", "try", "e", 1, "granted"},
		{second, "mutex of a multi mutex", "try", "x", 1, "denied"},
		{second, "mutex of a multi mutex", "acquire", "f", 1, "waits"},
		{first, "multi mutex", "release", "e", 0, "released"},
		{second, "mutex of a multi mutex", "await", "f", 0, "granted"},
		{first, "multi mutex", "try", "x", 1, "denied"},
		{first, "multi mutex", "acquire", "g", 1, "waits"},
		{second, "mutex of a multi mutex", "release", "f", 0, "released"},
		{first, "multi mutex", "await", "g", 0, "granted"},
		{first, "multi mutex", "release", "g", 0, "released"},
	}

	minHold = []step{
		{first, "", "try", "a", 1, "granted"},
		{second, "mutex", "try", "x", 1, "denied"},
		{first, "", "release", "a", 0, "released"},
		{second, "mutex", "try", "x", 1, "denied"},
		{second, "", "try", "x", 1, "denied"},
		{second, "", "force", "", 0, "freed"},
		{first, "mutex", "try", "b", 1, "granted"},
		{second, "", "try", "x", 1, "denied"},
		{first, "mutex", "release", "b", 0, "released"},
	}

	set = []step{
		{first, "", "set", "", 3, "set"},
		{second, "", "set", "", 5, "set before"},
		{second, "", "state", "", 0, "3 free"},
	}

	permits = []step{
		{first, "", "try", "a", 3, "granted"},
		{second, "", "try", "x", 1, "denied"},
		{second, "", "acquire", "b", 1, "waits"},
		{second, "", "pending", "b", 0, "waits"},
		{first, "", "release", "a", 0, "released"},
		{second, "", "await", "b", 0, "granted"},
		{first, "", "state", "", 0, "2 free"},
		{first, "", "try", "x", 3, "denied"},
		{first, "", "try", "c", 2, "granted"},
		{second, "", "state", "", 0, "0 free"},
		{first, "", "try", "x", 1, "denied"},
		{second, "", "try", "x", 1, "denied"},
		{first, "", "acquire", "d", 1, "waits"},
		{second, "", "release", "b", 0, "released"},
		{first, "", "await", "d", 0, "granted"},
		{second, "", "try", "x", 1, "denied"},
		{first, "", "release", "c", 0, "released"},
		{first, "", "release", "d", 0, "released"},
		{second, "", "state", "", 0, "3 free"},
		{second, "", "try", "e", 3, "granted"},
		{first, "", "try", "x", 1, "denied"},
		{second, "", "release", "e", 0, "released"},
		{first, "", "state", "", 0, "3 free"},
	}

	permitQueue = []step{
		{first, "", "try", "g", 3, "granted"},
		{second, "", "acquire", "h", 2, "waits"},
		{first, "", "waiting", "", 0, "1 waiting"},
		{first, "", "acquire", "i", 2, "waits"},
		{second, "", "waiting", "", 0, "2 waiting"},
		{second, "", "acquire", "j", 2, "waits"},
		{first, "", "waiting", "", 0, "2 waiting"}, // processes
		{first, "", "release", "g", 0, "released"},
		{second, "", "await", "h", 0, "granted"},
		{first, "", "try", "x", 1, "denied"}, // one permit is free; the first request needs two
		{second, "", "release", "h", 0, "released"},
		{first, "", "await", "i", 0, "granted"},
		{second, "", "pending", "j", 0, "waits"},
		{first, "", "release", "i", 0, "released"},
		{second, "", "await", "j", 0, "granted"},
		{second, "", "release", "j", 0, "released"},
	}

	limit = []step{
		{first, "", "take", "", 4, "granted"},
		{second, "", "peek", "", 0, "6 left"},
		{second, "", "take", "", 4, "granted"},
		{first, "", "take", "", 3, "denied"},
		{first, "", "take", "", 2, "granted"},
		{second, "", "take", "", 1, "denied"},
		{first, "", "take", "", 1, "denied"},
		{second, "", "peek", "", 0, "0 left"},
	}

	setLimit = []step{
		{first, "", "set", "", 10, "set"},
		{second, "", "set", "", 20, "set before"},
	}

	perClient = []step{
		{first, "", "take", "", 10, "granted"},
		{first, "", "take", "", 1, "denied"},
		{second, "", "take", "", 6, "granted"},
		{second, "", "take", "", 5, "denied"},
		{second, "", "peek", "", 0, "4 left"},
		{second, "", "take", "", 4, "granted"},
		{second, "", "take", "", 1, "denied"},
		{first, "", "take", "", 1, "denied"},
	}
)

// Tasks that one schedules run in the other, and one edits what the other has claimed.
var taskTurns = []step{
	{first, "", "set", "", 1, "set"},
	{second, "", "state", "", 0, `"pending" after 0 losses`},
	{second, "", "try", "a", 1, "granted"},
	{first, "", "state", "", 0, `"claimed" after 0 losses`},
	{first, "", "set", "", 1, "set"},
	{first, "", "force", "", 0, "freed"},
	{first, "", "force", "", 0, "free"},
	{second, "", "release", "a", 0, "released"},
	{first, "", "state", "", 0, `"" after 0 losses`},
	{second, "", "set", "", 1, "set"},
	{first, "", "try", "b", 1, "granted"},
	{second, "", "set", "", 1, "set"},
	{first, "", "release", "b", 0, "released"},
	{second, "", "try", "c", 1, "granted"},
	{second, "", "release", "c", 0, "released"},
	{first, "", "state", "", 0, `"" after 0 losses`},
}

// A process of one version dies, and the other version takes its task.
var lostTask = []step{
	{first, "", "set", "", 1, "set"},
	{first, "", "try", "a", 2, "granted"},
	{first, "", "lost", "a", 0, "lost"},
	{second, "", "try", "b", 1, "granted"},
	{first, "", "state", "", 0, `"claimed" after 1 losses`},
	{second, "", "outlive", "b", 0, "valid"},
	{second, "", "release", "b", 0, "released"},
	{first, "", "state", "", 0, `"" after 0 losses`},
}

// combined takes from one part alone, by which the other version's All is bounded.
func combined(part string) []step {
	return []step{
		{first, part, "take", "", 8, "granted"},
		{second, "", "take", "", 3, "denied"},
		{second, "fixed window", "peek", "", 0, "10 left"},
		{second, "", "take", "", 1, "granted"},
		{first, "fixed window", "peek", "", 0, "9 left"},
		{first, "", "take", "", 1, "granted"},
		{second, "", "take", "", 1, "denied"},
		{second, part, "take", "", 1, "denied"},
		{first, "fixed window", "take", "", 8, "granted"},
		{second, "fixed window", "take", "", 1, "denied"},
	}
}

var scenarios = []scenario{
	{kinds: []string{"mutex", "mutex with fencing", "writer"}, steps: turns},
	{kinds: []string{"fair mutex"}, steps: slices.Concat(turns, queue)},
	{kinds: []string{"reader"}, uses: []string{"writer"}, steps: readers},
	{kinds: []string{"multi mutex"}, uses: []string{"mutex of a multi mutex"}, steps: slices.Concat(turns, parts)},
	{kinds: []string{"mutex with a minimum hold"}, uses: []string{"mutex"}, steps: minHold},
	{kinds: []string{"semaphore", "counting semaphore"}, steps: slices.Concat(set, permits)},
	{kinds: []string{"fair semaphore"}, steps: slices.Concat(set, permits, permitQueue)},
	{kinds: []string{"semaphore with permits"}, steps: permits},
	{kinds: []string{"fair semaphore with permits"}, steps: slices.Concat(permits, permitQueue)},
	{
		kinds:   []string{"mutex", "mutex with fencing", "writer", "fair mutex"},
		renewal: true, steps: slices.Concat(renewal, force),
	},
	{
		kinds:   []string{"multi mutex", "semaphore with permits", "fair semaphore with permits"},
		renewal: true, steps: renewal,
	},
	{kinds: []string{"semaphore", "fair semaphore"}, renewal: true, steps: slices.Concat(set, renewal)},
	{kinds: []string{"reader"}, uses: []string{"writer"}, renewal: true, steps: renewedReader},
	{kinds: []string{"delayed task"}, steps: taskTurns},
	{kinds: []string{"delayed task"}, renewal: true, steps: lostTask},
	{kinds: []string{"GCRA", "fixed window", "sliding window"}, steps: limit},
	{kinds: []string{"sliding log"}, steps: slices.Concat(setLimit, limit)},
	{kinds: []string{"sliding log per client"}, steps: slices.Concat(setLimit, perClient)},
	{
		kinds: []string{"All of GCRA and fixed window"}, uses: []string{"GCRA", "fixed window"},
		steps: combined("GCRA"),
	},
	{
		kinds: []string{"All of sliding and fixed window"}, uses: []string{"sliding window", "fixed window"},
		steps: combined("sliding window"),
	},
}

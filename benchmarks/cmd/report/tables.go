//go:build unix

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

// row is one figure that cogwheel is compared by.
type row struct {
	load string // empty: that of the row before
	what string // with the unit
	key  figures.Key
	impl string // of ours; ours by default
	more bool   // more is better
	// ratio is the unit of the ratios that the benchmark has computed itself, from turns that are shorter than a round.
	ratio string
	goals []goal
	short bool // docs/benchmarks.md shows it too
	// reason is why a peer may be better, where no goal says it.
	reason string
}

// goal is what a row should reach: a ratio to a peer, or an absolute limit.
type goal struct {
	peer  string  // empty: an absolute limit
	value float64 // least ratio, or greatest figure
	why   string  // what stands in the way, for a goal that is missed
}

// table is what the page shows of one subject.
type table struct {
	name  string // of the subject
	ours  string // the implementation
	peers []string
	rows  []row
}

// names are what the page calls the implementations.
var names = map[string]string{
	"wheel": "cogwheel", "inline": "cogwheel, `Inline()`", "typed": "cogwheel, `Typed`", "AfterFunc": "time.AfterFunc",
	"Netty": "Netty", "netty": "Netty's algorithm in Go", "timingwheel": "RussellLuo/timingwheel", "gozero": "go-zero",
	"keyed": "cogwheel, `Keyed`", "map": "map, mutex, time.AfterFunc",
	"floor": "floor", "cogwheel": "cogwheel", "cogwheel-window": "cogwheel, `FixedWindow`",
	"bsm": "bsm/redislock", "redsync": "redsync", "rueidislock": "rueidislock", "redis_rate": "redis_rate", "polling": "polling",
	"asynq": "asynq", "asynq-fast": "asynq, a check every 10 ms",
}

const (
	whyClock   = "The floor reads the clock once and locks an uncontended mutex twice, and does nothing else."
	whyFire    = "The closure of the caller has left the caches by then, and the default executor hands it over; `Inline()` does not."
	whyFew     = "A wheel grows in chunks of many timers."
	whyOneCall = "A pair is two round trips, as with every library; `floor` sends the two scripts and does nothing else."
	whyRenewal = "The renewals of a window walk leases that have left the processor's caches since the last one."
	whyHotKey  = "Most of the time is the wait for a script and the wake-up of its callers; `floor` does nothing else."
	whyScripts = "The scripts recognise repeated calls and keep the leases, for which a polling semaphore has no command."
	whyTimely  = "asynq collects what became due in five seconds in one call, and begins it that late. Every process of cogwheel asks in time."
	whyEarly   = "It began the other tasks up to a second too early."
	whyAgain   = "The process that releases the lock takes it again at once; the waits of the others go on and are not counted."
	whyBoth    = "The server takes 12 µs to claim and end a task, and a script that only reads and writes its keys 6 µs. It shares two cores with the processes."
)

// tables returns what is compared, for results of this size.
func tables(full bool) []table {
	n := func(n int) string { return strconv.Itoa(size(full, n)) }
	return []table{timers(n), keys(n), locks(full), takeover(full), limits(), semaphores(), tasks(n), fleetSections(full), fleetTasks(full)}
}

func timers(n func(int) string) table {
	k := func(bench, unit string) figures.Key { return figures.Key{Package: "wheel", Bench: bench, Unit: unit} }
	schedule := func(goroutines int, pending string) string {
		return fmt.Sprintf("ScheduleStop/goroutines=%d/pending=%s", goroutines, pending)
	}
	producers := func(procs int) string { return fmt.Sprintf("Producers/procs=%d", procs) }
	oneFifth := []goal{{"AfterFunc", 5, whyClock}}
	fire := "Fire/load=dense/timers=" + n(1_000_000)
	fireFew, fewer := "Fire/load=sparse/timers="+n(50_000), readable(n(50_000))
	pending := "Pending/pending=" + n(1_000_000)
	goals := func(why string) []goal { return []goal{{"AfterFunc", 5, why}, {"Netty", 2, why}} }
	million := readable(n(1_000_000))
	return table{"timers", "wheel", []string{"AfterFunc", "Netty", "netty", "timingwheel", "gozero", "floor"}, []row{
		{load: "schedule and stop, none pending", what: "ns of processor time", key: k(schedule(1, "0"), "cpu-ns/call")},
		{load: "schedule and stop, " + million + " pending", what: "ns of processor time", short: true, key: k(schedule(1, n(1_000_000)), "cpu-ns/call"), goals: goals(whyClock)},
		{what: "ns of time", key: k(schedule(1, n(1_000_000)), "ns/call")},
		{load: "the same, 2 goroutines", what: "ns of processor time", key: k(schedule(2, n(1_000_000)), "cpu-ns/call"), goals: goals(whyClock)},
		{load: "schedule and stop, " + million + " pending, 64 goroutines, GOMAXPROCS 2", what: "ns of processor time", key: k(producers(2), "cpu-ns/call"), goals: oneFifth},
		{load: "schedule and stop, " + million + " pending, 64 goroutines, GOMAXPROCS 8", what: "ns of processor time", key: k(producers(8), "cpu-ns/call"), goals: oneFifth},
		{load: "schedule and stop, " + million + " pending, 64 goroutines, GOMAXPROCS 16", what: "ns of processor time", key: k(producers(16), "cpu-ns/call"), goals: oneFifth},
		{load: "schedule and stop, " + readable(n(10_000_000)) + " pending", what: "ns of processor time", key: k(schedule(1, n(10_000_000)), "cpu-ns/call")},
		{load: "move " + million + " pending timers to a later time", what: "ns of processor time", key: k("Reschedule", "cpu-ns/call"), goals: []goal{{"AfterFunc", 1, ""}, {"Netty", 1, ""}}},
		{load: million + " timers fire over 2 s", what: "ns of processor time each", short: true, key: k(fire, "cpu-ns/timer"), goals: []goal{{"Netty", 1.1, whyFire}}},
		{what: "ns of processor time each, with `Inline()`", key: k(fire, "cpu-ns/timer"), impl: "inline"},
		{what: "ms late, median", short: true, key: k(fire, "p50-late-ms")},
		{what: "ms late, 99 %", short: true, key: k(fire, "p99-late-ms"), goals: []goal{{"Netty", 1, ""}}},
		{what: "ms late, 99.9 %", key: k(fire, "p99.9-late-ms")},
		{what: "ms too early, at most", key: k(fire, "early-ms"), goals: []goal{{"", 0, ""}}},
		{load: fewer + " timers fire over 2 s", what: "ns of processor time each", key: k(fireFew, "cpu-ns/timer")},
		{what: "ms late, 99 %", key: k(fireFew, "p99-late-ms")},
		{load: million + " timers wait", what: "bytes each", short: true, key: k(pending, "B/timer")},
		{what: "bytes each, with `Typed`", key: k(pending, "B/timer"), impl: "typed"},
		{what: "ms of processor time per second", short: true, key: k(pending, "cpu-ms/s")},
		{what: "ms of a full garbage collection", short: true, key: k(pending, "gc-ms")},
		{load: "1000 timers wait", what: "bytes each", short: true, key: k("Pending/pending=1000", "B/timer"), goals: []goal{{"", 60, whyFew}}},
		{what: "ms of processor time per second", key: k("Pending/pending=1000", "cpu-ms/s")},
	}}
}

// keys compares timers by key.
func keys(n func(int) string) table {
	t := table{"keys", "keyed", []string{"map", "gozero"}, nil}
	for _, goroutines := range []string{"1", "64"} {
		k := func(step, unit string) figures.Key {
			return figures.Key{Package: "wheel", Bench: "Keyed/step=" + step + "/goroutines=" + goroutines, Unit: unit}
		}
		load := readable(n(1_000_000)) + " keys, " + goroutines + " goroutines"
		if goroutines == "1" {
			load = strings.TrimSuffix(load, "s")
		}
		t.rows = append(t.rows,
			row{load: load, what: "ns of processor time to set a new key", key: k("set", "cpu-ns/call")},
			row{what: "ns to replace a value", key: k("replace", "cpu-ns/call")},
			row{what: "ns to move a deadline", key: k("reschedule", "cpu-ns/call")},
			row{what: "ns to remove a key", key: k("remove", "cpu-ns/call")})
		if goroutines == "1" {
			t.rows = append(t.rows, row{what: "bytes for a key", key: k("set", "B/key")})
		}
	}
	return t
}

func locks(full bool) table {
	k := func(bench, unit string) figures.Key { return figures.Key{Package: "locks", Bench: bench, Unit: unit} }
	held := "500"
	if full {
		held = "10000"
	}
	heldLocks := readable(held)
	const one, many = "Uncontended/goroutines=1/ctx=", "Uncontended/goroutines=64/ctx="
	fleet := "HotNameOfAFleet/processes=4/goroutines=16"
	held = "Held/locks=" + held
	return table{"locks", "cogwheel", []string{"bsm", "redsync", "rueidislock", "floor"}, []row{
		{
			load: "1 goroutine, a context that cannot end", what: "pairs per second", key: k(one+"endless", "pairs/s"), more: true,
			goals: []goal{{"bsm", 1, whyOneCall}},
		},
		{load: "1 goroutine, a context that can end", what: "pairs per second", short: true, key: k(one+"cancellable", "pairs/s"), more: true},
		{
			load: "64 goroutines, a name for each, a context that cannot end", what: "pairs per second", key: k(many+"endless", "pairs/s"), more: true,
			goals: []goal{{"bsm", 1.8, ""}, {"rueidislock", 1.25, ""}},
		},
		{
			load: "64 goroutines, a name for each, a context that can end", what: "pairs per second", short: true, key: k(many+"cancellable", "pairs/s"), more: true,
			goals: []goal{{"bsm", 1.8, ""}, {"rueidislock", 1.25, "The rounds scatter around the goal."}},
		},
		{what: "µs of the client's processor time for a pair", key: k(many+"cancellable", "client-us/pair")},
		{what: "µs of the server for a pair", short: true, key: k(many+"cancellable", "server-us/pair")},
		{load: "64 goroutines want one name", what: "sections per second", short: true, key: k("HotName/processes=1/goroutines=64", "sections/s"), more: true},
		{load: "4 processes of 16 goroutines want one name", what: "sections per second", short: true, key: k(fleet, "sections/s"), more: true},
		{what: "sections of the process with fewest, to that with most", key: k(fleet, "fairness"), more: true},
		{load: heldLocks + " locks are held and renewed", what: "bytes each", short: true, key: k(held, "bytes/lock"), goals: []goal{{"", 600, ""}}},
		{what: "goroutines", key: k(held, "goroutines"), goals: []goal{{"", 16, ""}}},
		{what: "ns of the client's processor time for a renewal", key: k(held, "cpu-ns/renewal"), goals: []goal{{"", 5000, whyRenewal}}},
		{what: "scripts for a renewal", short: true, key: k(held, "commands/renewal")},
	}}
}

func takeover(full bool) table {
	bench := "Takeover/locks=20"
	if full {
		bench = "Takeover/locks=100"
	}
	k := func(unit string) figures.Key { return figures.Key{Package: "locks", Bench: bench, Unit: unit} }
	return table{"takeover", "cogwheel", []string{"bsm", "redsync"}, []row{
		{load: "from the end of the lease to the next holder", what: "ms, median", key: k("p50-after-ms")},
		{what: "ms, 99 %", short: true, key: k("p99-after-ms")},
		{load: "while it waits", what: "commands per second of a waiter", short: true, key: k("polls/s")},
	}}
}

func limits() table {
	k := func(bench, unit string) figures.Key { return figures.Key{Package: "limits", Bench: bench, Unit: unit} }
	t := table{"limits", "cogwheel", []string{"redis_rate", "floor"}, nil}
	for _, load := range []struct {
		what, bench string
		goals       []goal
	}{
		{"1 key, 1 goroutine", "keys=1/goroutines=1", nil},
		{"1 key, 64 goroutines", "keys=1/goroutines=64", []goal{{"redis_rate", 8, whyHotKey}}},
		{"64 keys, 64 goroutines", "keys=64/goroutines=64", nil},
	} {
		bench := "Versus/" + load.bench + "/ctx=cancel"
		t.rows = append(t.rows,
			row{load: load.what, what: "decisions per second", key: k(bench, "/s"), more: true, ratio: "x", goals: load.goals, short: true},
			row{what: "decisions per second with `FixedWindow`", key: k(bench, "/s"), more: true, ratio: "x", impl: "cogwheel-window"},
			row{what: "µs of the server for a decision", key: k(bench, "server-us"), short: true},
			row{what: "round trips for a decision", key: k(bench, "trips")})
	}
	t.rows = append(t.rows,
		row{load: "a key that is known to be exhausted", what: "ns for a denial", key: k("Denied", "ns/denial"), short: true},
		row{what: "round trips for a denial", key: k("Denied", "trips/op")})
	return t
}

func semaphores() table {
	t := table{"semaphores", "cogwheel", []string{"polling"}, nil}
	for _, kind := range []string{"counting", "leased"} {
		for _, load := range []struct {
			what, bench string
			wait        bool
			goal        float64 // of the leased kind
		}{
			{"1 goroutine", "Uncontended/kind=" + kind + "/permits=64/goroutines=1/ctx=cancellable", false, 0.85},
			{"64 goroutines, 64 permits", "Uncontended/kind=" + kind + "/permits=64/goroutines=64/ctx=cancellable", false, 1},
			{"64 goroutines, a name for each", "OwnNames/kind=" + kind + "/permits=64/names=64/goroutines=64", false, 1},
			{"64 goroutines, 5 permits", "Contended/kind=" + kind + "/permits=5/goroutines=64/hold=0s", true, 0},
			{"64 goroutines, 30 permits", "Contended/kind=" + kind + "/permits=30/goroutines=64/hold=0s", true, 0},
			{"64 goroutines, 5 permits held for 2 ms", "Contended/kind=" + kind + "/permits=5/goroutines=64/hold=2ms", true, 0},
		} {
			k := func(unit string) figures.Key {
				return figures.Key{Package: "semaphores", Bench: load.bench, Unit: unit}
			}
			leased := kind == "leased"
			pairs := row{load: kind + ", " + load.what, what: "pairs per second", key: k("pairs/s"), more: true, short: leased && load.what != "64 goroutines, a name for each"}
			if leased && load.goal > 0 {
				pairs.goals = []goal{{"polling", load.goal, whyScripts}}
			}
			t.rows = append(t.rows, pairs)
			if !load.wait {
				t.rows = append(t.rows, row{what: "µs of the server for a pair", key: k("server-us/pair")})
			}
			if load.wait {
				t.rows = append(t.rows, row{what: "ms of waiting, 99 %", key: k("wait-p99-ms"), short: leased},
					row{what: "round trips for a pair", key: k("trips/pair")})
			}
		}
	}
	return t
}

// tasks compares package delay.
func tasks(n func(int) string) table {
	k := func(bench, unit string) figures.Key { return figures.Key{Package: "delays", Bench: bench, Unit: unit} }
	atMost := func(v float64) []goal { return []goal{{"", v, ""}} }
	t := table{"tasks", "cogwheel", []string{"asynq", "asynq-fast"}, nil}
	for _, rate := range []string{"2000", "10000"} {
		bench, server := "Evenly/rate="+rate, row{what: "µs of the server for a task", key: k("Evenly/rate="+rate, "server-us/task"), short: rate == "2000"}
		if rate == "2000" {
			server.goals = []goal{{"", 75, whyTimely}, {"asynq", 1, whyTimely}}
		}
		t.rows = append(t.rows,
			row{load: readable(rate) + " due in a second, 4 processes", what: "ms too early, at most", key: k(bench, "early-ms"), goals: atMost(0), short: rate == "2000"},
			row{what: "ms late, median", key: k(bench, "p50-late-ms"), goals: atMost(2)},
			row{what: "ms late, 99 %", key: k(bench, "p99-late-ms"), goals: []goal{{"", 5, ""}, {"asynq-fast", 1, whyEarly}}, short: rate == "2000"},
			server)
	}
	instant := readable(n(20_000)) + " due at one instant, 64 workers in "
	return table{t.name, t.ours, t.peers, append(t.rows,
		row{
			load: instant + "4 processes", what: "ms until all have begun", key: k("Instant/processes=4", "max-late-ms"), short: true,
			goals: []goal{{"", 250, whyBoth}, {"asynq-fast", 10, whyBoth}},
		},
		row{load: instant + "16 processes", what: "ms until all have begun", key: k("Instant/processes=16", "max-late-ms"), goals: []goal{{"", 500, whyBoth}}},
		row{
			load: readable(n(20_000)) + " without a delay", what: "tasks per second", key: k("AtOnce", "tasks/s"), more: true, short: true,
			goals: []goal{{"asynq", 4, whyBoth}},
		},
		row{what: "µs of the server for a task", key: k("AtOnce", "server-us/task"), goals: atMost(35)},
		row{
			load: readable(n(100_000)) + " pending, none due", what: "commands per second of a process", key: k("Waiting", "commands/s"), short: true,
			goals: atMost(0.5),
		},
		row{what: "bytes for a task beside its id and payload", key: k("Waiting", "B/task"), goals: atMost(200)},
		row{
			load: "a process is killed", what: "ms from the end of a lease to the second attempt, at most", key: k("Crash", "max-late-ms"),
			goals: atMost(200),
		},
		row{load: "one reply in 50 is lost", what: "ms late, 99 %", key: k("LostReplies", "p99-late-ms"), goals: atMost(50)},
		row{what: "tasks that ran twice", key: k("LostReplies", "again"), goals: atMost(0)},
	)}
}

// spread is a median and what it was at least and at most.
type spread struct{ median, least, most float64 }

func spreadOf(v []float64) (spread, bool) {
	m, ok := figures.Median(v)
	if !ok {
		return spread{}, false
	}
	return spread{m, slices.Min(v), slices.Max(v)}, true
}

// advantage is how many times better ours is than a peer, round by round: the ratio of what both took, or of what both
// did in a second. It is false where one of them was not measured, or a ratio says nothing.
func (r row) advantage(set *figures.Set, ours, peer string) (spread, bool) {
	if r.ratio != "" {
		k := r.key
		k.Unit = r.ratio
		return spreadOf(set.Of(k, ours))
	}
	mine, theirs := set.Of(r.key, ours), set.Of(r.key, peer)
	var ratios []float64
	for i := range min(len(mine), len(theirs)) {
		better, worse := theirs[i], mine[i]
		if r.more {
			better, worse = worse, better
		}
		if better < 0 || worse < 0 || better == 0 && worse == 0 { // a timer that fires early is not less late
			return spread{}, false
		}
		ratios = append(ratios, better/worse)
	}
	return spreadOf(ratios)
}

func (r row) ours(t table) string {
	if r.impl != "" {
		return r.impl
	}
	return t.ours
}

// readable groups the digits of a long number.
func readable(digits string) string {
	if len(digits) <= 4 {
		return digits
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}

func number(v float64) string {
	if v >= 100 || v <= -100 {
		return readable(strconv.FormatFloat(v, 'f', 0, 64))
	}
	if v > -0.0005 && v < 0.0005 {
		return "0"
	}
	text := strconv.FormatFloat(v, 'g', 3, 64)
	if strings.Contains(text, "e") {
		text = strconv.FormatFloat(v, 'f', 4, 64)
	}
	return text
}

func times(v float64) string {
	switch {
	case v >= 100:
		return readable(strconv.FormatFloat(v, 'f', 0, 64))
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

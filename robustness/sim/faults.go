package sim

import (
	"slices"
	"strings"
	"time"
)

// FaultKind is a kind of fault: what is drawn of it, and how it is brought about.
type FaultKind struct {
	Name    string
	process bool // of one process
	object  bool // about one object
	loses   bool // data, or the measure of time
	private bool // the server and its network serve on: no outage
	ends    bool // a process, or its clients
	mistake bool // the server serves, but not this client
	pool    bool // the present connections are bad
	unknown bool // the server gives an answer that says nothing
	draw    func(d drawer, s *Schedule, f *Fault)
	inject  func(w *world, f Fault, met func())
}

// FaultKinds are all of them.
var FaultKinds = slices.Concat(outages, healthFaults, lineFaults)

// outages are the faults that are drawn together.
var outages = slices.Concat(networkFaults, serverFaults, processFaults)

func faultOf(name string) *FaultKind {
	i := slices.IndexFunc(FaultKinds, func(k *FaultKind) bool { return k.Name == name })
	return FaultKinds[i]
}

// lasting draws how long a fault lasts: from a blink to longer than a lease.
func lasting(d drawer, s *Schedule, f *Fault) {
	f.For = d.between(10*time.Millisecond, d.one(100*time.Millisecond, s.Timeout, s.Lease/2, 2*s.Lease, 5*s.Lease))
}

// some draws how many messages a fault hits.
func some(d drawer, _ *Schedule, f *Fault) { f.N = 1 + d.IntN(1+d.IntN(20)) }

func nothing(drawer, *Schedule, *Fault) {}

var networkFaults = []*FaultKind{
	{
		Name: "messages slow", process: true,
		draw: func(d drawer, s *Schedule, f *Fault) {
			lasting(d, s, f)
			f.After = d.one(10*time.Millisecond, 100*time.Millisecond, s.Timeout)
		},
		inject: func(w *world, f Fault, met func()) {
			w.onLink(f, func(l *link) { l.slow, l.slowBefore = f.After, time.Now().Add(f.For) })
			met()
		},
	},
	{Name: "requests lost", process: true, draw: some, inject: func(w *world, f Fault, met func()) {
		w.onLink(f, func(l *link) { l.lostCalls = loss{left: f.N, met: met} })
	}},
	{Name: "replies lost", process: true, draw: some, inject: func(w *world, f Fault, met func()) {
		w.onLink(f, func(l *link) { l.lostReply = loss{left: f.N, met: met} })
	}},
	{
		Name: "replies cut off", process: true,
		draw: func(d drawer, s *Schedule, f *Fault) {
			some(d, s, f)
			f.After = d.between(time.Millisecond, 50*time.Millisecond)
		},
		inject: func(w *world, f Fault, met func()) {
			w.onLink(f, func(l *link) { l.lostReply = loss{left: f.N, after: f.After, met: met} })
		},
	},
	{
		Name: "requests late", process: true,
		draw: func(d drawer, s *Schedule, f *Fault) {
			some(d, s, f)
			f.After = d.between(time.Millisecond, d.one(20*time.Millisecond, time.Second, s.Lease))
		},
		inject: func(w *world, f Fault, met func()) {
			w.onLink(f, func(l *link) { l.late = loss{left: f.N, after: f.After, met: met} })
		},
	},
	{Name: "connections cut", process: true, draw: nothing, inject: func(w *world, f Fault, met func()) {
		if w.slot(f).link.reset() > 0 {
			met()
		}
	}},
	{Name: "connections silent", process: true, draw: nothing, inject: func(w *world, f Fault, met func()) {
		if w.slot(f).link.silence() > 0 {
			met()
		}
	}},
	{Name: "network parted", process: true, draw: lasting, inject: func(w *world, f Fault, met func()) {
		w.onLink(f, func(l *link) { l.cut = time.Now().Add(f.For) })
		met()
	}},
}

var serverFaults = []*FaultKind{
	{Name: "server hangs", draw: lasting, inject: func(w *world, f Fault, met func()) {
		w.net.mu.Lock()
		if until := time.Now().Add(f.For); until.After(w.net.hangs) { // a hang within another ends none
			w.net.hangs = until
		}
		w.net.mu.Unlock()
		met()
	}},
	{Name: "server restarts", draw: lasting, inject: func(w *world, f Fault, met func()) {
		w.restart(f, false, met)
	}},
	{
		Name: "server restarts without its data", draw: lasting, loses: true,
		inject: func(w *world, f Fault, met func()) { w.restart(f, true, met) },
	},
	{Name: "scripts forgotten", private: true, draw: nothing, inject: func(w *world, _ Fault, met func()) {
		w.server.forgetScripts()
		met()
	}},
	refusing("read-only", "READONLY You can't write against a read only replica.",
		func(command string, _ []string, _ bool) bool { return isWrite(command) }),
	refusing("out of memory", "OOM command not allowed when used memory > 'maxmemory'.",
		func(command string, _ []string, _ bool) bool { return needsMemory(command) }),
	refusing("no replicas", "NOREPLICAS Not enough good replicas to write.",
		func(command string, _ []string, _ bool) bool { return isWrite(command) }),
	refusing("busy", "BUSY Redis is busy running a script.", outside),
	refusing("loading", "LOADING Redis is loading the dataset in memory", outside),
	refusing("no password", "NOAUTH Authentication required.", outside),
	refusing("no right to scripts", "NOPERM this user has no permissions to run the 'evalsha' command",
		func(command string, _ []string, _ bool) bool { return command == "evalsha" || command == "eval" }),
	refusing("no right to publish", "NOPERM this user has no permissions to run the 'publish' command",
		func(command string, _ []string, _ bool) bool { return command == "publish" }),
	refusing("no right to expire", "NOPERM this user has no permissions to run the 'pexpire' command",
		func(command string, _ []string, _ bool) bool { return command == "pexpire" }),
	refusing("no right to delete", "NOPERM this user has no permissions to run the 'del' command",
		func(command string, _ []string, _ bool) bool {
			return command == "del" || command == "hdel" || command == "zrem"
		}),
	{
		Name: "key migrates", object: true, draw: lasting,
		inject: func(w *world, f Fault, met func()) {
			name := w.Objects[f.Object].Name
			w.server.refuse(&refusal{
				until: time.Now().Add(f.For), met: met,
				reply: "TRYAGAIN Multiple keys request during rehashing of slot",
				match: func(command string, args []string, inScript bool) bool {
					keys := keysOf(strings.ToUpper(command), args)
					about := func(key string) bool { return strings.Contains(key, name) }
					return !inScript && slices.ContainsFunc(keys, about)
				},
			})
		},
	},
	{
		Name: "server's clock steps", loses: true,
		draw: func(d drawer, s *Schedule, f *Fault) {
			f.After = d.one(-time.Hour, -s.Lease, -100*time.Millisecond, 100*time.Millisecond, s.Lease, time.Hour)
		},
		inject: func(w *world, f Fault, met func()) {
			w.server.step(f.After, w.since())
			met()
		},
	},
}

func outside(command string, _ []string, inScript bool) bool {
	return !inScript && command != "hello" && command != "client"
}

// refusing makes a fault in which the server answers some commands with an error.
func refusing(name, reply string, match func(command string, args []string, inScript bool) bool) *FaultKind {
	mistake := strings.HasPrefix(reply, "NO") && !strings.HasPrefix(reply, "NOREPLICAS") // NOAUTH, NOPERM
	return &FaultKind{Name: name, mistake: mistake, draw: lasting, inject: func(w *world, f Fault, met func()) {
		first := name == "out of memory"
		w.server.refuse(&refusal{until: time.Now().Add(f.For), match: match, reply: reply, first: first, met: met})
	}}
}

var processFaults = []*FaultKind{
	{Name: "process stands still", process: true, draw: lasting, inject: func(w *world, f Fault, met func()) {
		p := w.slot(f)
		w.onLink(f, func(l *link) { l.frozen = time.Now().Add(f.For) })
		w.stops(p, f.For)
		met()
	}},
	{Name: "process killed", process: true, ends: true, draw: lasting, inject: func(w *world, f Fault, met func()) {
		w.replace(f, met, func(p *process) {
			w.kill(p)
			time.Sleep(f.For)
		})
	}},
	{
		Name: "clients closed", process: true, ends: true, private: true, draw: nothing,
		inject: func(w *world, f Fault, met func()) { w.replace(f, met, w.end) },
	},
	{
		Name: "wheel stopped", process: true, ends: true, private: true, draw: nothing,
		inject: func(w *world, f Fault, met func()) {
			w.replace(f, met, func(p *process) {
				w.stopWheel(p)
				w.end(p)
			})
		},
	},
	{Name: "wheel full", process: true, draw: lasting, inject: func(w *world, f Fault, met func()) {
		if w.slot(f).fillWheel(f.For) {
			met()
		}
	}},
	{Name: "hook panics", process: true, draw: some, inject: func(w *world, f Fault, met func()) {
		w.slot(f).panics.arm(f.N, met)
	}},
	{
		Name: "wall clock steps", process: true, private: true,
		draw: func(d drawer, s *Schedule, f *Fault) {
			f.After = d.one(-time.Hour, -2*s.Lease, 2*s.Lease, time.Hour).Truncate(time.Second)
		},
		inject: func(w *world, f Fault, met func()) {
			w.slot(f).clock.step(f.After)
			met()
		},
	},
}

//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is what one command measures of several implementations, one after the other.
type step struct {
	name      string
	pkg       string // the folder of the benchmarks; Netty's are a program
	bench     string // -test.bench
	benchtime string // in a full run; 1x otherwise
	rounds    int    // of five
}

const nettyFolder = "netty"

// steps are in the order of a round. On two idle cores, a round takes about six minutes, the last one, which has all of
// them, about 18, and the five rounds 38.
func (m *measurement) steps() []step {
	million := strconv.Itoa(size(m.full, 1_000_000))
	impls := `impl=(wheel|AfterFunc|netty|timingwheel|gozero|floor)$` // gost takes a minute
	all := []step{
		{"timers: schedule and stop", "wheel", `^BenchmarkScheduleStop$/goroutines=1/pending=/` + impls, "1x", 5},
		{"timers: schedule and stop, 2 goroutines", "wheel", `^BenchmarkScheduleStop$/goroutines=2/pending=` + million + `$/` + impls, "1x", 5},
		{"timers: schedule and stop, 64 goroutines", "wheel", `^BenchmarkProducers$`, "1x", 3},
		{"timers: reschedule", "wheel", `^BenchmarkReschedule$`, "1x", 5},
		{"timers: many fire", "wheel", `^BenchmarkFire$/load=(dense|sparse)`, "1x", 5},
		{"timers: by key", "wheel", `^BenchmarkKeyed$`, "1x", 3},
		{"timers: waiting", "wheel", `^BenchmarkPending$/pending=(1000|` + million + `)$`, "1x", 2},
		{"timers: Netty", nettyFolder, "", "", 5},
		{"locks: uncontended", "locks", `^BenchmarkUncontended$`, "1x", 5},
		{"locks: one hot name", "locks", `^BenchmarkHotName$`, "1x", 5},
		{"locks: one hot name, 4 processes", "locks", `^BenchmarkHotNameOfAFleet$`, "1x", 3},
		{"locks: 10 000 held", "locks", `^BenchmarkHeld$`, "1x", 2},
		{"locks: takeover after a crash", "locks", `^BenchmarkTakeover$`, "1x", 3},
		{"limits: decisions", "limits", `^BenchmarkVersus$/keys/goroutines/ctx=cancel$`, "20x", 5},
		{"limits: denials", "limits", `^BenchmarkDenied$`, "20000x", 5},
		{"semaphores: permits for all", "semaphores", `^BenchmarkUncontended$/kind=[cl]/./goroutines/ctx=cancellable`, "1x", 3},
		{"semaphores: a name for each", "semaphores", `^BenchmarkOwnNames$/kind=[cl]`, "1x", 3},
		{"semaphores: few permits", "semaphores", `^BenchmarkContended$/kind=[cl]`, "1x", 3},
		{"tasks: due and at once", "delays", `^Benchmark(Evenly|Instant|AtOnce)$`, "1x", 2},
		{"tasks: waiting, a crash, lost replies", "delays", `^Benchmark(Waiting|Crash|LostReplies)$`, "1x", 1},
		{"fleets: locks and permits", "fleets", `^BenchmarkSections$`, "1x", 1},
		{"fleets: tasks", "fleets", `^BenchmarkTasks$`, "1x", 1},
	}
	return slices.DeleteFunc(all, func(s step) bool {
		pkg := s.pkg
		if pkg == nettyFolder {
			pkg = "wheel" // whose benchmarks it repeats
		}
		return s.pkg == nettyFolder && m.netty == "" || m.only != "" && pkg != m.only
	})
}

// size is n in a full run and a thousandth of it otherwise, as in the benchmarks of the wheel.
func size(full bool, n int) int {
	if full {
		return n
	}
	return n / 1000
}

// takesPart reports whether a step that is measured n times in five rounds is measured in this one, of 1 to rounds.
func takesPart(n, round, rounds int) bool {
	n = max(1, n*rounds/5)
	return round*n/rounds != (round-1)*n/rounds
}

// measurement is one run.
type measurement struct {
	full   bool
	rounds int
	limit  time.Duration
	netty  string // class path, or empty
	only   string // the package whose steps are measured; all if it is empty
	log    io.Writer

	began    time.Time
	programs string // the folder of the programs that measure
}

// run measures, and writes file when everything has been measured. What there is until then is in file+".partial",
// which remains if a step fails.
func (m *measurement) run(ctx context.Context, file string) error {
	m.began = time.Now()
	if err := m.check(file); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	partial, err := os.Create(file + ".partial")
	if err != nil {
		return err
	}
	defer partial.Close()
	folder, err := os.MkdirTemp("", "report")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	m.programs = folder
	m.progress("builds the programs")
	if err := m.build(ctx); err != nil {
		return err
	}
	var raw bytes.Buffer
	header, err := m.machine(ctx)
	if err != nil {
		return err
	}
	if _, err := partial.WriteString(header); err != nil {
		return err
	}
	m.progress("\n%s", header)
	var failed error
	done, longest := 0, time.Duration(0)
	for round := 1; round <= m.rounds; round++ {
		if done > 0 && time.Since(m.began)+longest > m.limit {
			m.progress("round %d would end after the limit of %v", round, m.limit)
			break
		}
		began := time.Now()
		for _, s := range m.steps() {
			if !takesPart(s.rounds, round, m.rounds) {
				continue
			}
			m.progress("round %d of %d, %s", round, m.rounds, s.name)
			out, err := m.measure(ctx, s)
			raw.Write(out)
			if _, e := partial.Write(out); e != nil {
				return e
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("round %d, %s: %w\n%s", round, s.name, err, out))
			}
			if ctx.Err() != nil {
				return failed
			}
		}
		done, longest = done+1, max(longest, time.Since(began))
	}
	if failed != nil {
		return fmt.Errorf("%w\nwhat was measured is in %s", failed, partial.Name())
	}
	if err := m.writeResults(file, header, done, raw.String()); err != nil {
		return err
	}
	m.progress("done: %s", file)
	return os.Remove(partial.Name())
}

// check fails if there is nothing to measure, or nothing to replace.
func (m *measurement) check(file string) error {
	if m.only == "" {
		return nil
	}
	if len(m.steps()) == 0 {
		return fmt.Errorf("no step measures package %q", m.only)
	}
	all, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if size := match(string(all), `(?m)^size: (.*)$`); size != m.size() {
		return fmt.Errorf("%s has results of size %q, which those of size %q do not fit", file, size, m.size())
	}
	return nil
}

func (m *measurement) size() string { return map[bool]string{true: "full", false: "smoke"}[m.full] }

// writeResults writes the file, or if only one package was measured, replaces the results of that in it.
func (m *measurement) writeResults(file, header string, rounds int, raw string) error {
	took := time.Since(m.began).Round(time.Minute)
	text := fmt.Sprintf("%srounds: %d\ntook: %d min\n%s", header, rounds, int(took.Minutes()), raw)
	if m.only != "" {
		all, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text = replaceResults(string(all), m.only, header, raw)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// ofLater are the lines of the head that are kept for a package which was measured later than the others.
var ofLater = []string{"date", "commit", "changed", "processor", "cores", "load", "goversion", "redis"}

// replaceResults returns results with those of one package replaced. The head stays; lines "package-date: ..." have what
// differs for the package.
func replaceResults(all, pkg, header, raw string) string {
	all = regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(pkg)+`-\w+: .*\n`).ReplaceAllLiteralString(all, "")
	var text strings.Builder
	kept := func(block string) {
		name := path.Base(match(block, `(?m)^pkg: (.*)$`))
		if name != pkg {
			text.WriteString(block)
		}
	}
	last := 0
	for _, at := range regexp.MustCompile(`(?m)^(?:goos: .*\ngoarch: .*\n)?pkg: `).FindAllStringIndex(all, -1) {
		kept(all[last:at[0]])
		last = at[0]
	}
	kept(all[last:])
	for _, key := range ofLater {
		if value := match(header, `(?m)^`+key+`: (.*)$`); value != "" {
			fmt.Fprintf(&text, "%s-%s: %s\n", pkg, key, value)
		}
	}
	return text.String() + raw
}

func (m *measurement) progress(format string, args ...any) {
	took := time.Since(m.began)
	_, _ = fmt.Fprintf(m.log, "%3d:%02d "+format+"\n", append([]any{int(took.Minutes()), int(took.Seconds()) % 60}, args...)...)
}

// build compiles the benchmarks of each folder, and those of Netty, into a program each.
func (m *measurement) build(ctx context.Context) error {
	packages := map[string]bool{}
	args := []string{"test", "-c", "-o", m.programs + string(filepath.Separator)}
	for _, s := range m.steps() {
		if s.pkg != nettyFolder && !packages[s.pkg] {
			packages[s.pkg] = true
			args = append(args, "./"+s.pkg)
		}
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if m.netty == "" {
		return nil
	}
	javac := exec.CommandContext(ctx, "javac", "-d", m.programs, "-cp", m.netty, filepath.Join(nettyFolder, "NettyTimers.java"))
	if out, err := javac.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// measure runs one step and returns what it printed.
func (m *measurement) measure(ctx context.Context, s step) ([]byte, error) {
	var cmd *exec.Cmd
	var out bytes.Buffer
	if s.pkg == nettyFolder {
		cmd = exec.CommandContext(ctx, "java", "-cp", m.programs+string(filepath.ListSeparator)+m.netty, "NettyTimers")
		if !m.full {
			cmd.Args = append(cmd.Args, "smoke")
		}
		out.WriteString("pkg: wheel\n") // the package whose benchmarks it repeats
	} else {
		benchtime := s.benchtime
		if !m.full {
			benchtime = "1x"
		}
		cmd = exec.CommandContext(ctx, filepath.Join(m.programs, s.pkg+".test"),
			"-test.run=^$", "-test.bench="+s.bench, "-test.benchtime="+benchtime, "-test.timeout=20m")
		cmd.Dir = s.pkg
		if m.full {
			cmd.Env = append(os.Environ(), "BENCH=full")
		}
	}
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return append(out.Bytes(), complaints.Bytes()...), err
	}
	return out.Bytes(), nil
}

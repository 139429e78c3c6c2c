package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// TestUpgrade runs PREDECESSOR, a commit, and this version side by side. It is make upgrade-check.
func TestUpgrade(t *testing.T) {
	ref := os.Getenv("PREDECESSOR")
	if ref == "" {
		t.Skip("needs an earlier version: make upgrade-check PREDECESSOR=<git ref>")
	}
	lines, failed := compare(t, buildAt(t, ref), build(t, root(t)))
	fmt.Println(strings.Join(lines, "\n"))
	require.Empty(t, failed)
}

// One version passes what TestUpgrade requires of two, so the program and the scenarios are correct.
func TestUpgrade_OneVersionUnderstandsItself(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	program := build(t, root(t))
	lines, failed := compare(t, program, program)
	lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, failure) })
	require.Empty(t, failed, strings.Join(lines, "\n"))
}

const failure = "FAILED: "

// compare runs every scenario in both directions. It returns a line for each kind and direction and for each kind that
// is left out, and the kinds that failed.
func compare(t *testing.T, before, now string) (lines, failed []string) {
	t.Helper()
	has, stalled := [2][]string{kindsOf(t, before), kindsOf(t, now)}, redistest.Stalls(t)
	server, w := redistest.Start(t), redistest.Wheel(t)
	addr, rdb := server.Addr(), server.Client(t)
	long := [2]*process{start(t, before, addr, longLease), start(t, now, addr, longLease)}
	short := [2]*process{start(t, before, addr, shortLease), start(t, now, addr, shortLease)}
	var mu sync.Mutex
	var plays sync.WaitGroup
	line := func(what, direction, result string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf("%-38s %-21s %s", what, direction, result))
	}
	for _, s := range scenarios {
		for _, kind := range s.kinds {
			what, processes := kind, long
			if s.renewal {
				what, processes = kind+", renewed", short
			}
			if lacks := missing(has, append(s.uses, kind)); lacks != "" {
				line(what, "skipped", lacks)
				continue
			}
			for i, direction := range []string{"old writes, new reads", "new writes, old reads"} {
				plays.Go(func() {
					err := undisturbed(stalled, func(attempt string) error {
						p := &play{
							object: what + ", " + direction + attempt, sides: [2]*process{processes[i], processes[1-i]},
							rdb: rdb, wheel: w, pending: make(map[string]<-chan reply),
						}
						return p.run(kind, s.steps)
					})
					if err != nil {
						line(what, direction, failure+err.Error())
						mu.Lock()
						defer mu.Unlock()
						failed = append(failed, kind)
						return
					}
					line(what, direction, "ok")
				})
			}
		}
	}
	plays.Wait()
	slices.Sort(lines)
	slices.Sort(failed)
	return lines, slices.Compact(failed)
}

// undisturbed plays again, with another object and at most twice, what fails while the machine stands still. A waiter has
// 50 ms to take what is kept for it. Then it is passed over.
func undisturbed(stalled func() time.Duration, play func(attempt string) error) (err error) {
	for _, attempt := range []string{"", ", again", ", for the last time"} {
		before := stalled()
		if err = play(attempt); err == nil || stalled()-before <= 10*time.Millisecond {
			break
		}
	}
	return err
}

func TestUndisturbed(t *testing.T) {
	t.Parallel()
	wrong := errors.New("wrong")
	for name, c := range map[string]struct {
		stalls time.Duration // in each attempt
		fails  int           // attempts
		plays  int
		err    error
	}{
		"a success":                      {time.Second, 0, 1, nil},
		"a failure":                      {10 * time.Millisecond, 3, 1, wrong},
		"a failure in a standstill":      {11 * time.Millisecond, 1, 2, nil},
		"three failures in a standstill": {time.Second, 3, 3, wrong},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stalled time.Duration
			var attempts []string
			err := undisturbed(func() time.Duration { return stalled }, func(attempt string) error {
				attempts = append(attempts, attempt)
				stalled += c.stalls
				if len(attempts) > c.fails {
					return nil
				}
				return wrong
			})
			require.Equal(t, c.err, err)
			require.Len(t, attempts, c.plays)
			slices.Sort(attempts)
			require.Len(t, slices.Compact(attempts), c.plays, "each attempt has an object of its own")
		})
	}
}

func missing(has [2][]string, kinds []string) string {
	for i, version := range []string{"the predecessor", "this version"} {
		for _, kind := range kinds {
			if !slices.Contains(has[i], kind) {
				return fmt.Sprintf("%s does not have %q", version, kind)
			}
		}
	}
	return ""
}

func kindsOf(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "-kinds").Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

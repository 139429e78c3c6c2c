// Command mutants puts faults of package mutants back one at a time, and runs the tests that have to find each. It
// prints a line for each fault, and fails if one is not found. Its argument, if not empty, names the only one. It
// runs in the folder of its module.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/mutants"
)

const root = ".."

func main() {
	only := strings.Join(os.Args[1:], "")
	all, err := mutants.Read(root)
	if err != nil {
		fail(err)
	}
	found, missed, wrong := 0, 0, 0
	for _, m := range all {
		if m.Folder == "" || only != "" && only != m.Name {
			continue
		}
		began := time.Now()
		by, err := run(m)
		var outcome string
		switch {
		case err != nil:
			wrong++
			outcome = "ERROR " + err.Error()
		case by != "" && m.Missed != "":
			wrong++
			outcome = "FOUND by " + by + ", although it is marked as missed"
		case by != "":
			found++
			outcome = "found by " + by
		case m.Missed != "":
			missed++
			outcome = "missed: " + m.Missed
		default:
			wrong++
			outcome = "NOT FOUND: " + m.Fault
		}
		fmt.Printf("%-40s %3.0f s  %s\n", m.Name, time.Since(began).Seconds(), outcome)
	}
	fmt.Printf("%d found, %d missed as marked, %d wrong\n", found, missed, wrong)
	switch {
	case found+missed+wrong == 0:
		fail(fmt.Errorf("there is no mutant %q with a test", only))
	case wrong > 0:
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(1)
}

// failed finds what has failed in the output of go test. Without a failed test, it may be a race, a panic, or a
// goroutine that is left.
var failed = regexp.MustCompile(`(?m)^\s*(?:--- FAIL: (\S+)|(WARNING: DATA RACE|panic: .*|fatal error: .*|goleak: .*))`)

// run returns which test fails, or "" if none does.
func run(m mutants.Mutant) (by string, err error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	overlay, err := m.Overlay(root, dir)
	if err != nil {
		return "", err
	}
	args := []string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout=4m", "-run", m.Run, "."}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(root, m.Folder)
	out, err := cmd.CombinedOutput()
	text := string(out)
	switch exit := new(exec.ExitError); {
	case strings.Contains(text, "no tests to run"):
		return "", fmt.Errorf("no test of %s is called %s", m.Folder, m.Run)
	case err == nil:
		return "", nil
	case !errors.As(err, &exit), strings.Contains(text, " failed]"): // build failed, setup failed
		return "", fmt.Errorf("%w\n%s", err, text)
	case strings.Contains(text, "panic: test timed out"):
		return "", errors.New("the tests ran for four minutes")
	}
	match := failed.FindStringSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("%w\n%s", err, text)
	}
	return match[1] + match[2], nil
}

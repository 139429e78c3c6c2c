package cogwheel_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

var (
	// givesLease is a line that gives a lease, or declares one as a number; durationOf is a duration in it.
	givesLease = regexp.MustCompile(`WithLease\(|^\s*(const |var )?[\w, ]*[lL]ease\b[\w, ]*:?= (\d|time\.)`)
	durationOf = regexp.MustCompile(`(?:([\d_]+) ?\* ?)?time\.(Millisecond|Second)\b`)
)

// shortLeases returns the lines of a test that give a lease which a stall of the machine may outlast, without
// the reason why it may.
func shortLeases(t *testing.T, text string) (short []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		code, _, explained := strings.Cut(line, " // short: ")
		code = strings.TrimSpace(code)
		if explained || !givesLease.MatchString(code) || strings.HasPrefix(code, "//") ||
			strings.Contains(code, "WithoutRenewal()") || strings.Contains(code, "safeLease") {
			continue
		}
		for _, found := range durationOf.FindAllStringSubmatch(code, -1) {
			n, unit := 1, map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second}[found[2]]
			if found[1] != "" {
				var err error
				n, err = strconv.Atoi(strings.ReplaceAll(found[1], "_", ""))
				require.NoError(t, err)
			}
			if time.Duration(n)*unit < redistest.SafeLease {
				short = append(short, code)
				break
			}
		}
	}
	return short
}

// A hold that a test must not lose has a lease that outlasts a stall of the machine. A shorter one is not
// renewed, or a comment on its line says why its loss fails no test: // short: its end is awaited.
func TestLeases_OfTestsOutlastAStall(t *testing.T) {
	t.Parallel()
	files, lines := 0, 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path == "benchmarks" { // they measure, and fail by no lease
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") || path == "leases_test.go" {
			return err
		}
		text := read(t, path)
		require.Empty(t, shortLeases(t, text), path)
		files, lines = files+1, lines+len(givesLease.FindAllString(text, -1))
		return nil
	}))
	require.Greater(t, files, 200, "the tests are found")
	require.Greater(t, lines, 80, "and their leases")

	for _, bad := range []string{
		"l := c.Mutex(name, redislock.WithLease(time.Second))",
		"l := c.Leased(name, semaphore.WithLease(4999 * time.Millisecond)) // its end is awaited",
		"const locks, lease, leases = 200, time.Second, 5",
		"lease := 2 * time.Second",
		"childLease = 3 * time.Second",
	} {
		require.Len(t, shortLeases(t, bad), 1, bad)
	}
	for _, good := range []string{
		"l := c.Mutex(name, redislock.WithLease(5*time.Second))",
		"l := c.Mutex(name, redislock.WithLease(time.Minute))",
		"l := c.Mutex(name, redislock.WithLease(time.Second), redislock.WithoutRenewal())",
		"const lease = time.Second // short: its end is awaited",
		"released := time.Second",
	} {
		require.Empty(t, shortLeases(t, good), good)
	}
}

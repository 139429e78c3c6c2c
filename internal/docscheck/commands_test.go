package docscheck_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command is what a document prints, and the shell command that shows that it works: often the same one.
type command struct{ printed, check string }

// commands reads testdata/commands.txt.
func commands(t *testing.T) (listed []command) {
	t.Helper()
	for line := range strings.Lines(read(t, "internal/docscheck/testdata/commands.txt")) {
		line = strings.TrimRight(line, "\n")
		switch check, indented := strings.CutPrefix(line, "\t"); {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented:
			listed[len(listed)-1].check = check
		default:
			listed = append(listed, command{printed: line, check: line})
		}
	}
	return listed
}

var (
	codeSpans = regexp.MustCompile("`([^`\n]+)`")
	runnable  = regexp.MustCompile(`^([A-Z][A-Z0-9_]*=\S+ )*(go (run|test|get|install|doc|list)|make|bash|cd|cogwheel) \S`)
)

// printedIn returns the commands of a document: lines of blocks without a language, and code within sentences. The tool's
// test runs those of the console blocks.
func printedIn(text string) (printed []string) {
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence = line
		case strings.HasPrefix(line, "```"):
			fence = ""
		case fence == "```" || fence == "```sh" || fence == "" && strings.HasPrefix(line, "    "):
			line, _, _ = strings.Cut(line, " # ")
			printed = append(printed, strings.TrimSpace(line))
		case fence == "":
			for _, code := range codeSpans.FindAllStringSubmatch(line, -1) {
				printed = append(printed, code[1])
			}
		}
	}
	return slices.DeleteFunc(printed, func(s string) bool { return !runnable.MatchString(s) })
}

// The list has each command that a document prints, and no other.
func TestCommands_ThePrintedOnesAreListed(t *testing.T) {
	t.Parallel()
	var printed, listed []string
	for _, document := range documents(t) {
		printed = append(printed, printedIn(read(t, document))...)
	}
	for _, c := range commands(t) {
		listed = append(listed, c.printed)
	}
	slices.Sort(printed)
	require.ElementsMatch(t, slices.Compact(printed), listed, "internal/docscheck/testdata/commands.txt")

	require.Equal(t, []string{"make test", "go run ./a -b", "cd c && go test .", "A=b make it"},
		printedIn("Run `make test`, `make` or `Lock`.\n\n```\ngo run ./a -b   # a comment\noutput\n```\n\n    cd c && go test .\n\n"+
			"```console\n$ cogwheel help\nmake me\n```\n```go\nmake it\n```\n`A=b make it`\n"))
}

// The README names the command that shows the library at work and the one that tests it.
func TestCommands_OfTheREADME(t *testing.T) {
	t.Parallel()
	printed := printedIn(read(t, "README.md"))
	require.Contains(t, printed, "go run -C examples ./tour")
	require.Contains(t, printed, "make test")
}

// Each command of the list can run. It takes minutes, so it is part of `make check`.
func TestCommands_Run(t *testing.T) {
	if os.Getenv("CHECK_COMMANDS") == "" {
		t.Skip("make check sets CHECK_COMMANDS")
	}
	for _, c := range commands(t) {
		t.Run(c.printed, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", c.check).CombinedOutput()
			require.NoError(t, err, "%s\n%s", c.check, out)
			require.NotContains(t, string(out), "no tests to run", c.check)
		})
	}
}

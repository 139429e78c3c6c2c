package docscheck_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// attributes are the keys that log records may have. CONTRIBUTING.md says what they stand for.
var attributes = []string{"name", "key", "node", "id", "error", "type", "leases", "permits", "declared", "wheels", "next", "last", "panic", "stack"}

// brokenLogs returns what breaks the rule of log messages in a source file of a package: a message begins with
// the package, its attributes have known keys, and a problem of the operator's is a warning, its end
// information, and a panic of the caller's code an error.
func brokenLogs(t *testing.T, pkg, name, text string) (calls int, broken []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "LogAttrs", "Log"}, method.Sel.Name) ||
			!strings.Contains(fmt.Sprint(source(text, files, method.X)), "logger") {
			return true
		}
		calls++
		level, args := method.Sel.Name, call.Args
		if strings.HasPrefix(level, "Log") {
			level, args = source(text, files, args[1]), args[2:]
		}
		message := source(text, files, args[0])
		breaks := func(rule string) { broken = append(broken, fmt.Sprintf("%s: %s: %s", name, rule, message)) }
		if !strings.HasPrefix(message, `"`+pkg+`: `) {
			breaks("a message that does not begin with the package")
		}
		if !regexp.MustCompile("(Info|Warn|Error)$").MatchString(level) {
			breaks("level " + level)
		}
		for i, arg := range args[1:] {
			key := source(text, files, arg)
			if attr, ok := arg.(*ast.CallExpr); ok && strings.HasPrefix(key, "slog.") {
				key = source(text, files, attr.Args[0])
			} else if i%2 == 1 {
				continue // a value
			}
			if key, err := strconv.Unquote(key); err != nil || !slices.Contains(attributes, key) {
				breaks("attribute " + key)
			}
		}
		return true
	})
	return calls, broken
}

func source(text string, files *token.FileSet, n ast.Node) string {
	return text[files.Position(n.Pos()).Offset:files.Position(n.End()).Offset]
}

// All packages log by one rule.
func TestLogs_FollowOneRule(t *testing.T) {
	t.Parallel()
	found := 0
	for _, pkg := range []string{"wheel", "renewal", "redislock", "semaphore", "ratelimit", "internal"} {
		require.NoError(t, filepath.WalkDir(pkg, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			calls, broken := brokenLogs(t, pkg, path, read(t, path))
			require.Empty(t, broken)
			found += calls
			return nil
		}))
	}
	require.Greater(t, found, 12, "the calls are found")

	for _, bad := range []string{
		`c.logger.Warn("redis is down", "error", err)`,
		`c.logger.Warn("p: redis is down", "cause", err)`,
		`c.logger.Debug("p: redis is down")`,
		`logger.LogAttrs(ctx, slog.LevelWarn, "p: x", slog.Any("why", err))`,
		`logger.LogAttrs(ctx, slog.LevelDebug, "p: x")`,
		`logger.LogAttrs(ctx, slog.LevelWarn, "q: x")`,
	} {
		calls, broken := brokenLogs(t, "p", "bad.go", "package p\nfunc f() { "+bad+" }")
		require.Equal(t, 1, calls)
		require.Len(t, broken, 1, bad)
	}
}

// messages returns the beginnings of the messages that a source file logs, by the same calls as brokenLogs.
func messages(text, pkg string) (found []string) {
	calls := regexp.MustCompile(`(?s)logger\.(?:LogAttrs|Info|Warn|Error)\([^"]*"(` + pkg + `: [^":]*)`)
	for _, call := range calls.FindAllStringSubmatch(text, -1) {
		found = append(found, call[1])
	}
	return found
}

// A search of docs/troubleshooting.md for a message of the log finds it.
func TestLogs_TroubleshootingHasEveryMessage(t *testing.T) {
	t.Parallel()
	_, page, found := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## Log messages\n")
	require.True(t, found)
	logged := []string{}
	for _, pkg := range []string{"wheel", "renewal", "redislock", "semaphore", "ratelimit", "delay"} {
		calls := 0
		files, err := filepath.Glob(pkg + "/*.go")
		require.NoError(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			n, _ := brokenLogs(t, pkg, name, read(t, name))
			calls += n
			of := messages(read(t, name), pkg)
			require.Len(t, of, n, name)
			logged = append(logged, of...)
		}
		require.Positive(t, calls, pkg)
	}
	slices.Sort(logged)
	logged = slices.Compact(logged)
	for _, message := range logged {
		require.Contains(t, page, "| `"+message)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+: [^`:]*)").FindAllStringSubmatch(page, -1)
	require.Len(t, rows, len(logged), "each row is a message: %q", logged)
	require.Equal(t, []string{"p: it hangs"}, messages("c.logger.Warn(\n\"p: it hangs\", \"name\", n)", "p"))
}

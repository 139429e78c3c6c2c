package scripts_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

var (
	forbidden = regexp.MustCompile(`(?i)PXAT|EXAT|EXPIREAT|struct\.|os\.time|math\.random`)
	assigned  = regexp.MustCompile(`(?m)^\s*([A-Za-z_]\w*)\s*=[^=]`)
	comment   = regexp.MustCompile(`(?s)--\[\[.*?\]\]|--[^\n]*`)
	declared  = regexp.MustCompile(`(?:local\s+|for\s+)([\w\s,]+?)(?:=|\sin\s)`)
)

// broken returns what is wrong with a script's text by the rules of doc.go.
func broken(name, source string) (faults []string) {
	lines := strings.Split(source, "\n")
	header := regexp.MustCompile(`^-- ` + regexp.QuoteMeta(name) + `\.lua  KEYS\[1.*\].* ARGV: .+  returns .+$`)
	block := regexp.MustCompile(`(?s)^--\[\[\n[A-Z][^\n]*\n.*?\nKEYS   1 .*?\nARGV   1 .*?\nReturns .*?\n\]\]\n`)
	isBlock := block.MatchString(source)
	switch {
	case !isBlock && !header.MatchString(lines[0]):
		faults = append(faults, "it does not begin with what it is for, its keys, its arguments and what it returns")
	case !isBlock && len(lines)-1 > 40:
		faults = append(faults, fmt.Sprintf("%d lines are more than 40", len(lines)-1))
	}
	if !strings.HasSuffix(source, "\n") {
		faults = append(faults, "no newline at the end")
	}
	for i, line := range lines {
		if isBlock && len(line) > 125 {
			faults = append(faults, fmt.Sprintf("line %d has %d bytes", i+1, len(line)))
		}
	}
	if found := forbidden.FindString(source); found != "" {
		faults = append(faults, found+" is not to be used")
	}
	if regexp.MustCompile(`(?m)^\s*function\s`).MatchString(source) {
		faults = append(faults, "a global function")
	}
	source = comment.ReplaceAllString(source, "")
	var locals []string
	for _, d := range declared.FindAllStringSubmatch(source, -1) {
		for name := range strings.SplitSeq(d[1], ",") {
			locals = append(locals, strings.TrimSpace(name))
		}
	}
	for _, a := range assigned.FindAllStringSubmatch(source, -1) {
		if !slices.Contains(locals, a[1]) {
			faults = append(faults, "assignment to the global "+a[1])
		}
	}
	return faults
}

func TestScripts_FollowTheRules(t *testing.T) {
	t.Parallel()
	for _, s := range scripts.All() {
		t.Run(s.Name(), func(t *testing.T) {
			t.Parallel()
			require.Empty(t, broken(s.Name(), s.Source()))
		})
	}
}

func TestScripts_EveryFileIsDeclaredOnce(t *testing.T) {
	t.Parallel()
	var declared []string
	for _, s := range scripts.All() {
		declared = append(declared, s.Name()+".lua")
	}
	require.ElementsMatch(t, scripts.EmbeddedNames(), declared)
}

// The check of the rules finds each way to break them.
func TestScripts_RulesHaveTeeth(t *testing.T) {
	t.Parallel()
	const header = "-- x.lua  KEYS[1]=hash ARGV: id  returns 1\n"
	const block = "--[[\nDoes x.\n\nKEYS   1 config (hash)\nARGV   1 id\nReturns 1\n]]\n"
	require.Empty(t, broken("x", header+"local a = 1\na = 2\nreturn a\n"))
	require.Empty(t, broken("x", block+strings.Repeat("local a = 1\n", 40)))
	for name, source := range map[string]string{
		"another name":       "-- y.lua  KEYS[1]=hash ARGV: id  returns 1\nreturn 1\n",
		"no header":          "return 1\n",
		"a block alone":      "--[[\nDoes x.\n]]\nreturn 1\n",
		"a very long line":   block + "return 1 -- " + strings.Repeat("x", 200) + "\n",
		"no final newline":   header + "return 1",
		"too long":           header + strings.Repeat("local a = 1\n", 40),
		"a client's time":    header + "redis.call('pexpireat', KEYS[1], ARGV[1])\n",
		"SET PXAT":           header + "redis.call('SET', KEYS[1], 1, 'PXAT', ARGV[1])\n",
		"the struct library": header + "return struct.pack('d', 1)\n",
		"a global variable":  header + "a = 1\nreturn a\n",
		"a global function":  header + "function f() end\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, broken("x", source))
		})
	}
}

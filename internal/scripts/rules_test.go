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

const longestLine = 140

var (
	header    = regexp.MustCompile(`(?s)^--\[\[\n[A-Z].*?\n\nKEYS     .*?\nARGV     .*?\nReturns  .*?\n\]\]\n`)
	forbidden = regexp.MustCompile(`(?i)PXAT|EXAT|EXPIREAT|struct\.|os\.time|math\.random|'INCRBY'`)
	message   = regexp.MustCompile(`redis\.call\((verb|'S?PUBLISH')`)
	runs      = regexp.MustCompile(`redis\.p?call\b`)
	runsNamed = regexp.MustCompile(`redis\.p?call\((?:'[A-Z]+'[,)]|verb,)`)
	function  = regexp.MustCompile(`(?m)^\s*function\s`)
	assigned  = regexp.MustCompile(`(?m)^\s*([A-Za-z_][\w, ]*?)\s*=[^=]`)
	declared  = regexp.MustCompile(`(?:local\s+|for\s+)([\w\s,]+?)(?:=|\sin\s|\n)|function\s*\w*\(([\w\s,]*)\)`)
	comments  = regexp.MustCompile(`(?s)--\[\[.*?\]\]|--[^\n]*`)
	errorText = regexp.MustCompile(`string\.\w+\([\w.\[\]]*\berr, '([^']*)'`)
	tables    = regexp.MustCompile(`\{[^{}]*\}`)
)

// sameOnAll are the texts of errors that all servers give in a script alike.
var sameOnAll = []string{"WRONGTYPE", "attempted to access a non local key"}

// broken returns what is wrong with the text of a script's file, and with that of the script that includes
// what it wants, by the rules of doc.go.
func broken(file, expanded string) (faults []string) {
	if !header.MatchString(file) {
		faults = append(faults, "no header with a purpose, KEYS, ARGV and Returns")
	}
	if !strings.HasSuffix(file, "\n") {
		faults = append(faults, "no newline at the end")
	}
	for i, line := range strings.Split(file, "\n") {
		if len(line) > longestLine {
			faults = append(faults, fmt.Sprintf("line %d is longer than %d", i+1, longestLine))
		}
	}
	code := comments.ReplaceAllString(expanded, "")
	if found := forbidden.FindString(code); found != "" {
		faults = append(faults, found+" is not to be used")
	}
	if message.MatchString(code) {
		faults = append(faults, "a message that may fail the call")
	}
	if len(runs.FindAllString(code, -1)) != len(runsNamed.FindAllString(code, -1)) {
		faults = append(faults, "a command that is not named where it is run")
	}
	for _, found := range errorText.FindAllStringSubmatch(code, -1) {
		if !slices.Contains(sameOnAll, found[1]) {
			faults = append(faults, "a decision by the text of an error, which another server gives another text: "+found[1])
		}
	}
	if function.MatchString(code) {
		faults = append(faults, "a global function")
	}
	code = tables.ReplaceAllString(code, "")
	var locals []string
	for _, d := range declared.FindAllStringSubmatch(code, -1) {
		for name := range strings.SplitSeq(d[1]+","+d[2], ",") {
			locals = append(locals, strings.TrimSpace(name))
		}
	}
	for _, a := range assigned.FindAllStringSubmatch(code, -1) {
		names := strings.TrimPrefix(strings.TrimPrefix(a[1], "local "), "for ")
		for name := range strings.SplitSeq(names, ",") {
			if !slices.Contains(locals, strings.TrimSpace(name)) {
				faults = append(faults, "assignment to the global "+name)
			}
		}
	}
	return faults
}

// Guarantees: D1, C3.
func TestScripts_FollowTheRules(t *testing.T) {
	t.Parallel()
	for _, s := range scripts.All() {
		t.Run(s.Name(), func(t *testing.T) {
			t.Parallel()
			require.Empty(t, broken(scripts.File(s.Name()+".lua"), s.Source()))
			require.NotContains(t, s.Source(), "-- include:", "included")
		})
	}
}

func TestScripts_EveryFileIsDeclaredOnce(t *testing.T) {
	t.Parallel()
	var declared []string
	for _, s := range scripts.All() {
		declared = append(declared, s.Name()+".lua")
	}
	require.ElementsMatch(t, scripts.FileNames("."), declared)
}

// Each text is included somewhere, and a script that includes functions calls one of them.
func TestScripts_Includes(t *testing.T) {
	t.Parallel()
	functions := regexp.MustCompile(`(?m)^local function (\w+)`)
	used := map[string]bool{}
	for _, s := range scripts.All() {
		file := scripts.File(s.Name() + ".lua")
		for _, name := range scripts.FileNames("include") {
			if !strings.Contains(file, "-- include: "+strings.TrimSuffix(name, ".lua")+"\n") {
				continue
			}
			used[name] = true
			text := scripts.File("include/" + name)
			elsewhere := strings.Replace(comments.ReplaceAllString(s.Source(), ""), comments.ReplaceAllString(text, ""), "", 1)
			defined := functions.FindAllStringSubmatch(text, -1)
			called := slices.ContainsFunc(defined, func(f []string) bool { return strings.Contains(elsewhere, f[1]+"(") })
			require.True(t, called || len(defined) == 0, "%s includes %s", s.Name(), name)
		}
	}
	require.Len(t, used, len(scripts.FileNames("include")))
}

// The check of the rules finds each way to break them.
func TestScripts_RulesHaveTeeth(t *testing.T) {
	t.Parallel()
	const head = "--[[\nDoes it.\n\nKEYS     1 name\nARGV     1 id\nReturns  1\n]]\n"
	good := head + "local a, b = 1, 2\na, b = b, a\nlocal t = {x = 1}\nt.y = 3\nreturn a\n"
	require.Empty(t, broken(good, good))
	for name, source := range map[string]string{
		"no header":          "return 1\n",
		"no purpose":         strings.Replace(head, "Does it.\n", "", 1) + "return 1\n",
		"no final newline":   head + "return 1",
		"too wide":           head + "local a = '" + strings.Repeat("a", longestLine) + "'\n",
		"a client's time":    head + "redis.call('pexpireat', KEYS[1], ARGV[1])\n",
		"SET PXAT":           head + "redis.call('SET', KEYS[1], 1, 'PXAT', ARGV[1])\n",
		"INCRBY":             head + "redis.call('INCRBY', KEYS[1], 1)\n",
		"the struct library": head + "return struct.pack('d', 1)\n",
		"a global variable":  head + "a = 1\nreturn a\n",
		"two globals":        head + "local a = 2\na, b = 1, 2\nreturn a\n",
		"a global function":  head + "function f() end\n",
		"a message by verb":  head + "local verb = ARGV[1]\nredis.call(verb, 'c', 1)\n",
		"a command by name":  head + "local c = 'GET'\nredis.call(c, KEYS[1])\n",
		"a computed command": head + "redis.pcall('G' .. 'ET', KEYS[1])\n",
		"a call by name":     head + "local call = redis.call\ncall('GET', KEYS[1])\n",
		"a call without ()":  head + "redis.call 'TIME'\n",
		"in lower case":      head + "redis.call('get', KEYS[1])\n",
		"the text of one":    head + "local got = redis.pcall('GET', KEYS[1])\nreturn string.find(got.err, 'NOPERM')\n",
		"a PUBLISH":          head + "redis.call('PUBLISH', 'c', 1)\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, broken(source, source))
		})
	}
}

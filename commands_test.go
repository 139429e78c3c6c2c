package cogwheel_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// programs begin the commands that documents print.
var programs = []string{"go", "make", "bash", "cogwheel"}

var (
	codeSpans = regexp.MustCompile("`([^`\n]+)`")
	assigned  = regexp.MustCompile(`^([A-Z][A-Z0-9_]*)=`)
)

// commandsIn returns the commands of a document: lines of indented and fenced blocks, and code within sentences.
func commandsIn(text string) (commands []string) {
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence = line
		case strings.HasPrefix(line, "```"):
			fence = ""
		case fence == "```console":
			if command, is := strings.CutPrefix(line, "$ "); is {
				commands = append(commands, command)
			}
		case fence == "```" || fence == "```sh", fence == "" && strings.HasPrefix(line, "    "):
			commands = append(commands, strings.TrimSpace(line))
		case fence == "":
			for _, code := range codeSpans.FindAllStringSubmatch(line, -1) {
				commands = append(commands, code[1])
			}
		}
	}
	return slices.DeleteFunc(commands, func(command string) bool {
		words := wordsOf(command)
		for len(words) > 0 && assigned.MatchString(words[0]) {
			words = words[1:]
		}
		return len(words) < 2 || words[0] != "cd" && !slices.Contains(programs, words[0])
	})
}

// wordsOf splits a command as a shell does, without its comment.
func wordsOf(command string) (words []string) {
	command, _, _ = strings.Cut(command, " # ")
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(command, -1) {
		words = append(words, strings.Trim(word, `'"`))
	}
	return words
}

// repository is what commands need to know of this one.
type repository struct {
	makefile, sources, help string
}

// fault says why a command cannot run in the folder dir of a clone, as it is printed; empty if it can.
func (r *repository) fault(t *testing.T, dir, command string) string {
	for part := range strings.SplitSeq(command, " && ") {
		words := wordsOf(part)
		for ; len(words) > 0 && assigned.MatchString(words[0]); words = words[1:] {
			if name := assigned.FindStringSubmatch(words[0])[1]; !r.knows(name) {
				return "nothing reads the variable " + name
			}
		}
		if words[0] == "cd" {
			dir = filepath.Join(dir, words[1])
			continue
		}
		if fault := r.faultOfOne(t, dir, words); fault != "" {
			return fault
		}
	}
	return ""
}

// knows reports whether anything reads a variable of the environment.
func (r *repository) knows(name string) bool {
	return strings.Contains(r.sources, strconv.Quote(name)) || regexp.MustCompile(`\b`+name+`\b`).MatchString(r.makefile)
}

func (r *repository) faultOfOne(t *testing.T, dir string, words []string) string {
	switch {
	case words[0] == "make":
		for _, word := range words[1:] {
			if name := assigned.FindStringSubmatch(word); name != nil {
				if !r.knows(name[1]) {
					return "make has no variable " + name[1]
				}
			} else if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(word) + `:`).MatchString(r.makefile) {
				return "make has no target " + word
			}
		}
	case words[0] == "bash":
		return missing(words[1])
	case words[0] == "cogwheel":
		if !strings.Contains(r.help, "\n    "+words[1]+" ") && words[1] != "COMMAND" {
			return "cogwheel has no command " + words[1]
		}
	case words[1] == "run":
		return faultOfRun(t, dir, words[2:])
	case words[1] == "test":
		return faultOfTest(t, dir, words[2:])
	case words[1] == "get" || words[1] == "install":
		path, ours := strings.CutPrefix(words[2], "github.com/cogwheel-go/cogwheel")
		if !ours {
			return "is not of this repository"
		}
		path, _, _ = strings.Cut(path, "@")
		if words[1] == "get" {
			return missing(filepath.Join(".", path, "go.mod"))
		}
		return missing(filepath.Join(".", path, "main.go"))
	}
	return ""
}

func missing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return path + " does not exist"
	}
	return ""
}

// faultOfRun looks for the program, and for the flags that follow it.
func faultOfRun(t *testing.T, dir string, words []string) string {
	folder := filepath.Join(dir, words[0])
	if fault := missing(filepath.Join(folder, "main.go")); fault != "" {
		return fault
	}
	for _, word := range words[1:] {
		if name, is := strings.CutPrefix(word, "-"); is && !strings.Contains(texts(t, folder, ".go"), strconv.Quote(name)) {
			return folder + " has no flag -" + name
		}
	}
	return ""
}

// faultOfTest looks for the packages, and for tests and benchmarks that -run and -bench select in them.
func faultOfTest(t *testing.T, dir string, words []string) string {
	var kinds, patterns, packages []string
	for i := 0; i < len(words); i++ {
		switch word := words[i]; {
		case (word == "-run" || word == "-bench") && i+1 < len(words): // else the flag itself is meant
			kinds, patterns = append(kinds, word), append(patterns, words[i+1])
			i++
		case slices.Contains([]string{"-count", "-benchtime", "-timeout", "-parallel", "-fuzz", "-fuzztime", "-tags"}, word):
			i++
		case !strings.HasPrefix(word, "-"):
			packages = append(packages, word)
		}
	}
	names := ""
	for _, p := range packages {
		folder, recursive := strings.CutSuffix(filepath.Join(dir, p), "...")
		if fault := missing(filepath.Join(".", folder)); fault != "" {
			return fault
		}
		if recursive {
			names += texts(t, filepath.Join(".", folder), "_test.go")
			continue
		}
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			names += read(t, file)
		}
	}
	for i, pattern := range patterns {
		prefix := map[string]string{"-run": "(?:Test|Fuzz|Example)", "-bench": "Benchmark"}[kinds[i]]
		if kinds[i] == "-run" && slices.Contains(kinds, "-bench") { // selects nothing, on purpose
			continue
		}
		first, _, _ := strings.Cut(pattern, "/")
		selects := func(f []string) bool { return regexp.MustCompile(first).MatchString(f[1]) }
		if !slices.ContainsFunc(regexp.MustCompile(`(?m)^func (`+prefix+`\w*)\(`).FindAllStringSubmatch(names, -1), selects) {
			return fmt.Sprintf("%s %s selects nothing in %v", kinds[i], pattern, packages)
		}
	}
	return ""
}

func theRepository(t *testing.T) *repository {
	t.Helper()
	_, help, found := strings.Cut(read(t, "docs/operations.md"), "$ cogwheel help\n") // a test compares it with the tool
	require.True(t, found)
	help, _, _ = strings.Cut(help, "```")
	return &repository{makefile: read(t, "Makefile"), sources: texts(t, ".", ".go"), help: help}
}

// Targets, packages, tests, programs, flags and variables of the commands that documents print exist.
func TestDocuments_CommandsCanRun(t *testing.T) {
	t.Parallel()
	r, found := theRepository(t), 0
	for _, document := range documents(t) {
		for _, command := range commandsIn(read(t, document)) {
			found++
			fault := r.fault(t, ".", command)
			if fault != "" && document == "docs/benchmarks.md" { // its commands may be meant for its module
				fault = r.fault(t, "benchmarks", command)
			}
			require.Empty(t, fault, "%s: %s", document, command)
		}
	}
	require.Greater(t, found, 40)
}

func TestCommands_AreFound(t *testing.T) {
	t.Parallel()
	require.Equal(t,
		[]string{"make test", "go run ./a -b", "cd c && go test .", "cogwheel help", "A=b make it"},
		commandsIn("Run `make test`, `make` or `Lock`.\n\n```\ngo run ./a -b\noutput\n```\n\n    cd c && go test .\n\n"+
			"```console\n$ cogwheel help\nmake me\n```\n```go\nmake it\n```\n`A=b make it`\n"))
}

func TestCommands_FaultsAreFound(t *testing.T) {
	t.Parallel()
	r := theRepository(t)
	for command, fault := range map[string]string{
		"make test lint":                                         "",
		"make nonsense":                                          "make has no target nonsense",
		"make fuzz NONSENSE=1":                                   "make has no variable NONSENSE",
		"NONSENSE_AS_WELL=1 make test":                           "nothing reads the variable NONSENSE_AS_WELL",
		"REDIS_SERVER=path make test":                            "",
		"bash .ci/nonsense":                                      ".ci/nonsense does not exist",
		"cogwheel inspect NAME":                                  "",
		"cogwheel frobnicate NAME":                               "cogwheel has no command frobnicate",
		"go run ./examples/quickstart":                           "",
		"go run ./examples/nonsense":                             "examples/nonsense/main.go does not exist",
		"cd benchmarks && go run ./cmd/hang -options":            "",
		"cd benchmarks && go run ./cmd/hang -nonsense":           "benchmarks/cmd/hang has no flag -nonsense",
		"go run ./cmd/hang":                                      "cmd/hang/main.go does not exist",
		"go test -race -v -run TestKinds ./redislock/":           "",
		"go test -run TestKinds ./wheel":                         "-run TestKinds selects nothing in [./wheel]",
		"go test -run '^$' -bench Nonsense ./...":                "-bench Nonsense selects nothing in [./...]",
		"go test -short ./nonsense":                              "nonsense does not exist",
		"go get github.com/cogwheel-go/cogwheel/contrib/nothing": "contrib/nothing/go.mod does not exist",
		"go get example.com/module":                              "is not of this repository",
		"go install github.com/cogwheel-go/cogwheel/cmd/no@v1":   "cmd/no/main.go does not exist",
	} {
		require.Equal(t, fault, r.fault(t, ".", command), command)
	}
}

package docscheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Code blocks of the documents are the bodies of functions in test files, or parts of the examples, so they
// compile.
func TestDocuments_ShowCodeThatCompiles(t *testing.T) {
	t.Parallel()
	compiled := slices.Concat(slices.Collect(maps.Values(functions(t, "readme", "Example")))...)
	programs := flat(texts(t, "examples", ".go") + texts(t, "contrib", ".go") + strings.Join(compiled, "\n"))
	blocks := 0
	for _, document := range documents(t) {
		for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, document), -1) {
			if !strings.Contains(programs, flat(strings.TrimSpace(block[1]))) {
				t.Errorf("%s shows code that is not compiled:\n%s", document, block[1])
			}
			blocks++
		}
		for _, block := range regexp.MustCompile("(?s)```(?:text)?\n(.*?)```|(?m)^    .*$").FindAllString(withoutCode(read(t, document)), -1) {
			require.NotContains(t, block, " := ", "%s: code that no test compiles", document)
		}
	}
	require.Positive(t, blocks)
}

// withoutCode is a document without its code blocks that compile.
func withoutCode(text string) string {
	return regexp.MustCompile("(?s)```(?:go|console)\n.*?```").ReplaceAllString(text, "")
}

// flat is a text between line breaks, without indentation.
func flat(text string) string {
	return "\n" + regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(text, "") + "\n"
}

// documents returns the names of all documents.
func documents(t *testing.T) []string {
	t.Helper()
	var documents []string
	for _, folder := range []string{"docs", "docs/*"} {
		found, err := filepath.Glob(folder + "/*.md")
		require.NoError(t, err)
		documents = append(documents, found...)
	}
	return append(documents, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
}

// The code blocks of docs/testing.md are functions of examples/jobs, where they compile and run.
func TestTestingPage_ShowsCodeOfTheExample(t *testing.T) {
	t.Parallel()
	code := read(t, "examples/jobs/jobs.go") + read(t, "examples/jobs/jobs_test.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "docs/testing.md"), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.Contains(t, code, "\n"+block[1])
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	tests := slices.Sorted(maps.Keys(functions(t, "Test", "Fuzz", "Benchmark")))
	all := testFiles(t)

	for _, document := range documents(t) {
		text := read(t, document)

		t.Run(document+" names tests that exist", func(t *testing.T) {
			t.Parallel()
			for _, name := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)").FindAllStringSubmatch(text, -1) {
				require.Contains(t, tests, name[1])
			}
		})

		t.Run(document+" names subtests that exist", func(t *testing.T) {
			t.Parallel()
			for _, name := range regexp.MustCompile("`Test\\w+/([^`]+)`").FindAllStringSubmatch(text, -1) {
				require.Positive(t, strings.Count(all, strconv.Quote(name[1])), "%q", name[1])
			}
		})

		t.Run(document+" links to files and headings that exist", func(t *testing.T) {
			t.Parallel()
			for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(withoutCode(text), -1) {
				target := document
				if link[1] != "" {
					target = filepath.Join(filepath.Dir(document), link[1])
				}
				require.FileExists(t, target)
				if link[2] != "" {
					require.Contains(t, headings(t, target), link[2], "of %s", target)
				}
			}
		})
	}
}

// Comments in code name documents that exist.
func TestDocuments_OfComments(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`\bdocs/[\w/-]+\.(?:md|txt|svg|png)`).FindAllString(texts(t, ".", ".go"), -1)
	require.Greater(t, len(named), 10)
	for _, document := range named {
		require.FileExists(t, document)
	}
}

// A search of docs/troubleshooting.md for the message of an exported error finds it.
func TestDocuments_TroubleshootingHasEveryError(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/troubleshooting.md")
	for _, pkg := range []string{"wheel", "renewal", "redislock", "ratelimit", "semaphore", "delay"} {
		section := regexp.MustCompile(`(?s)\n## ` + pkg + `\n(.*?)\n## `).FindStringSubmatch(page)
		require.Len(t, section, 2, pkg)
		texts := read(t, pkg+"/errors.go")
		if pkg == "ratelimit" {
			texts = read(t, "ratelimit/internal/keys/failures.go")
		}
		errs := regexp.MustCompile(`\tErr\w+ += errors.New\("`+pkg+`: (.*?)"\)`).FindAllStringSubmatch(texts, -1)
		require.NotEmpty(t, errs, pkg)
		for _, err := range errs {
			require.Contains(t, section[1], "`"+err[1]+"`", pkg)
		}
	}
}

// Each promise of docs/guarantees.md stands in the comment of a test, and each promise that a test names exists.
// The comment is a line such as "Guarantees: L16, L25."
func TestDocuments_EachGuaranteeHasTests(t *testing.T) {
	t.Parallel()
	var promises []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|`).FindAllStringSubmatch(read(t, "docs/guarantees.md"), -1) {
		require.NotContains(t, promises, row[1])
		promises = append(promises, row[1])
	}
	require.Greater(t, len(promises), 100)

	list := regexp.MustCompile(`^[A-Z]\d+(?:, [A-Z]\d+)*\.$`)
	var tested []string
	for _, line := range regexp.MustCompile(`(?m)^\s*// Guarantees: ?(.*)$`).FindAllStringSubmatch(testFiles(t), -1) {
		require.Regexp(t, list, line[1])
		tested = append(tested, strings.Split(strings.TrimSuffix(line[1], "."), ", ")...)
	}
	slices.Sort(tested)
	require.ElementsMatch(t, promises, slices.Compact(tested))
}

// llms.txt, the list of pages for tools, has every page.
func TestDocuments_AreListedForTools(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(read(t, "llms.txt"), -1) {
		require.FileExists(t, link[1])
		if strings.HasSuffix(link[1], ".md") {
			listed = append(listed, link[1])
		}
	}
	require.ElementsMatch(t, documents(t), listed)
}

// headings returns the names by which GitHub links to the headings of a document.
func headings(t *testing.T, document string) []string {
	t.Helper()
	var names []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(read(t, document), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// testFiles returns the text of all test files.
func testFiles(t *testing.T) string { t.Helper(); return texts(t, ".", "_test.go") }

func texts(t *testing.T, folder, suffix string) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, suffix) {
			all.WriteString(read(t, path))
		}
		return err
	}))
	return all.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// functions returns, by name, the bodies of the functions in test files whose names begin with one of the
// prefixes. The bodies are indented by one level less.
func functions(t *testing.T, prefixes ...string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text := read(t, path)
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.Name.Name, p) }) {
				continue
			}
			body := text[files.Position(f.Body.Lbrace).Offset+1 : files.Position(f.Body.Rbrace).Offset]
			body = regexp.MustCompile(`(?s)\n\t// (Unordered o|O)utput:.*`).ReplaceAllString(body, "")
			body = strings.TrimSpace(strings.ReplaceAll(body, "\n\t", "\n"))
			found[f.Name.Name] = append(found[f.Name.Name], body)
		}
		return nil
	}))
	return found
}

package cogwheel_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// notPublic are folders without a package for users. cogwheeltest needs a testing.TB, which an Example has not;
// docs/testing.md shows it.
var notPublic = []string{"internal", "examples", "benchmarks", "contrib", "cmd", "docs", "bin", "cogwheeltest"}

// shownAt has the types, functions and errors that need no Example of their own, and the Example that shows
// them. Those of packages come with the package's name, and go doc shows the Example at its own symbol.
var shownAt = map[string]string{
	"ratelimit.Config":       "ratelimit.ExampleWithKeepAlive",
	"ratelimit.Result":       "ratelimit.ExampleKeyed_Allow",
	"ratelimit.Source":       "ratelimit.ExampleWithPrefetch",
	"ratelimit.Stats":        "ratelimit.ExampleClient_Stats",
	"ratelimit.Algorithm":    "ratelimit.ExampleWithAlgorithm",
	"ratelimit.ErrWrongKind": "redislock.ExampleMutex_Lock_wrongKind", // as there
	"ratelimit.Breaker":      "ratelimit.ExampleClient_Breaker",
	"ratelimit.Checkable":    "ratelimit.ExampleClient_Check",
	"ratelimit.Event":        "ratelimit.ExampleHooks",
	"ratelimit.Finding":      "ratelimit.ExampleClient_Check",
	"ratelimit.Kind":         "ratelimit.ExampleHooks",
	"ratelimit.Part":         "ratelimit.ExampleClient_All",
	"ratelimit.Report":       "ratelimit.ExampleClient_Check",

	"httplimit.Address": "httplimit.ExampleByAddress",
	"httplimit.Fields":  "httplimit.ExampleWithFields",

	"redislock.Checkable":   "redislock.ExampleClient_Check",
	"redislock.Event":       "redislock.ExampleHooks",
	"redislock.Finding":     "redislock.ExampleClient_Check",
	"redislock.Hold":        "redislock.ExampleClient_Holds",
	"redislock.Kind":        "redislock.ExampleClient_Holds",
	"redislock.Report":      "redislock.ExampleClient_Check",
	"redislock.Stats":       "redislock.ExampleClient_Stats",
	"redislock.Wait":        "redislock.ExampleClient_Waits",
	"redislock.Waiter":      "redislock.ExampleMutex_State_waiting",
	"redislock.Holder":      "redislock.ExampleMutex_State",
	"redislock.State":       "redislock.ExampleMutex_State",
	"redislock.MultiState":  "redislock.ExampleMultiMutex_TryLock",
	"redislock.QuorumState": "redislock.ExampleQuorumMutex_State",
	"redislock.ServerState": "redislock.ExampleQuorumMutex_State",

	"renewal.Event":        "renewal.ExampleHooks",
	"renewal.Stats":        "renewal.ExampleRenewer_Stats",
	"renewal.Batch":        "renewal.ExampleBackend",
	"renewal.Outcome":      "renewal.ExampleBackend",
	"renewal.Ref":          "renewal.ExampleBackend",
	"renewal.Lease":        "renewal.ExampleDestination_Add",
	"renewal.Option":       "renewal.ExampleNew",
	"renewal.ErrUnwatched": "renewal.ExampleLostError", // likewise, when the wheel is stopped or full

	"semaphore.LeasedOption": "semaphore.ExampleClient_Leased",
	"semaphore.Checkable":    "semaphore.ExampleClient_Check",
	"semaphore.Event":        "semaphore.ExampleHooks",
	"semaphore.Finding":      "semaphore.ExampleClient_Check",
	"semaphore.Hold":         "semaphore.ExampleClient_Holds",
	"semaphore.Kind":         "semaphore.ExampleClient_Holds",
	"semaphore.LeasedState":  "semaphore.ExampleLeased_State",
	"semaphore.Permit":       "semaphore.ExampleLeased_State",
	"semaphore.Report":       "semaphore.ExampleClient_Check",
	"semaphore.Stats":        "semaphore.ExampleClient_Stats",
	"semaphore.Wait":         "semaphore.ExampleClient_Waits",

	"wheel.Stats":      "wheel.ExampleWheel_Stats",
	"wheel.ErrStopped": "wheel.ExampleWheel_Stop",
}

// decisions are what a program has to decide, and the Example that shows how.
var decisions = map[string]string{
	"the loss of a lock":               "redislock.ExampleLock_Done",
	"the loss of a lock in Do":         "redislock.ExampleMutex_Do_lost",
	"a fenced write":                   "redislock.ExampleWithFencing",
	"the crash of a holder":            "redislock.ExampleMutex_Lock_holderCrashed",
	"a lock that is held":              "redislock.ExampleLockedError",
	"a wait that takes too long":       "redislock.ExampleMutex_Lock",
	"Redis is down":                    "redislock.ExampleClient_redisDown",
	"a wait without a goroutine":       "redislock.ExampleMutex_LockFunc",
	"a lock taken twice":               "redislock.ExampleOwner",
	"a writer that becomes a reader":   "redislock.ExampleRWMutex_Downgrade",
	"several names at once":            "redislock.ExampleMultiMutex_TryLock",
	"a majority that is missing":       "redislock.ExampleQuorumMutex_TryLock",
	"the end of a process":             "redislock.ExampleClient_Close",
	"metrics":                          "redislock.ExampleHooks",
	"a right that is missing":          "redislock.ExampleClient_Check",
	"a status page":                    "redislock.ExampleClient_Holds",
	"several limits at once":           "ratelimit.ExampleClient_All",
	"limits at once in a cluster":      "ratelimit.ExampleWithHashTag",
	"names that come and go":           "semaphore.ExampleWithIdleExpiry",
	"a denied request":                 "ratelimit.ExampleKeyed_Allow",
	"a denied HTTP request":            "httplimit.ExampleWithDenied",
	"a limit while Redis is down":      "ratelimit.ExampleFailOpen",
	"HTTP while Redis is down":         "httplimit.ExampleWithFailed",
	"a client that Redis refuses":      "ratelimit.ExamplePolicy",
	"a limit that is not set":          "ratelimit.ExampleLimiter_Allow_notConfigured",
	"a limit shared with Java":         "ratelimit.ExampleClient_Limiter_redisson",
	"a wait beyond the deadline":       "ratelimit.ExampleKeyed_Wait",
	"a wait that is not needed":        "ratelimit.ExampleKeyed_WaitFunc",
	"a reservation that is not needed": "ratelimit.ExampleKeyed_Reserve",
	"a part of a request":              "ratelimit.ExampleKeyed_AllowUpTo",
	"a look at a limit":                "ratelimit.ExampleKeyed_Peek",
	"a lost permit":                    "semaphore.ExampleGrant_Context",
	"the crash of a permit's holder":   "semaphore.ExampleLeased_Acquire_holderCrashed",
	"permits that are taken":           "semaphore.ExampleLeased_TryAcquire",
	"a release too many":               "semaphore.ExampleWithMax",
	"a permit without a goroutine":     "semaphore.ExampleLeased_AcquireFunc",
	"a stopped wheel":                  "wheel.ExampleWheel_Stop",
	"too many timers":                  "wheel.ExampleWithMaxPendingTimeouts",
	"a callback that panics":           "wheel.ExampleWithPanicHandler",
	"a cron expression":                "wheel.ExampleSchedule",
	"a period":                         "wheel.ExampleWheel_Every",
	"values instead of closures":       "wheel.ExampleTyped",
	"a deadline of a context":          "wheel.ExampleWheel_WithTimeout",
	"a task as Netty's":                "wheel.ExampleTimeout",
	"a pool of one's own":              "wheel.ExampleExecutorFunc",
	"time in a test":                   "wheel.ExampleWithClock",
	"a backend of one's own":           "renewal.ExampleBackend",
	"a backend that is down":           "renewal.ExampleLostError",
}

// publicPackage is a package as go doc sees it, with its Examples.
type publicPackage struct {
	*doc.Package
	values []string // exported errors
}

// publicPackages parses the packages for users.
func publicPackages(t *testing.T) []publicPackage {
	t.Helper()
	sources := map[string]map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(notPublic, path) || strings.HasPrefix(path, ".") && path != "."):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" && filepath.Dir(path) != ".":
			if sources[filepath.Dir(path)] == nil {
				sources[filepath.Dir(path)] = map[string]string{}
			}
			sources[filepath.Dir(path)][path] = read(t, path)
		}
		return nil
	}))
	var found []publicPackage
	for _, folder := range slices.Sorted(maps.Keys(sources)) {
		found = append(found, parsePackage(t, folder, sources[folder]))
	}
	return found
}

// parsePackage parses the files of a package, by name, with those of its tests.
func parsePackage(t *testing.T, folder string, sources map[string]string) publicPackage {
	t.Helper()
	files, parsed := token.NewFileSet(), []*ast.File{}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		file, err := parser.ParseFile(files, name, sources[name], parser.ParseComments)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	documented, err := doc.NewFromFiles(files, parsed, "github.com/cogwheel-go/cogwheel/"+folder)
	require.NoError(t, err)
	p := publicPackage{Package: documented}
	values := slices.Clone(documented.Vars)
	for _, v := range values {
		for _, name := range v.Names {
			if strings.HasPrefix(name, "Err") {
				p.values = append(p.values, name)
			}
		}
	}
	return p
}

// examples returns all Examples that go doc shows, by name: ExampleMutex_Do.
func (p publicPackage) examples() map[string]*doc.Example {
	all := map[string]*doc.Example{}
	add := func(examples []*doc.Example) {
		for _, e := range examples {
			all["Example"+e.Name] = e
		}
	}
	add(p.Examples)
	for _, f := range p.Funcs {
		add(f.Examples)
	}
	for _, t := range p.Types {
		for _, e := range examplesOf(t) {
			all["Example"+e.Name] = e
		}
	}
	return all
}

// examplesOf returns the Examples that go doc shows at a type, its constructors and its methods.
func examplesOf(t *doc.Type) []*doc.Example {
	all := slices.Clone(t.Examples)
	for _, f := range slices.Concat(t.Funcs, t.Methods) {
		all = append(all, f.Examples...)
	}
	return all
}

// missing returns what has no Example: each type needs one at its own place in go doc, and each function and
// error has to occur in the code of one. An Example without checked output does not count.
func (p publicPackage) missing(shownAt map[string]string) (lines []string) {
	used, has := map[string]bool{}, map[string]bool{}
	for name, e := range p.examples() {
		if e.Output == "" && !e.EmptyOutput {
			lines = append(lines, p.Name+"."+name+" has no output")
		}
		ast.Inspect(e.Code, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == p.Name {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
	}
	need := func(name string, ok bool) {
		if _, elsewhere := shownAt[p.Name+"."+name]; ok == elsewhere {
			lines = append(lines, map[bool]string{
				true: p.Name + "." + name + " has an Example and is listed in shownAt", false: p.Name + "." + name,
			}[ok])
		}
		has[name] = true
	}
	functions := slices.Clone(p.Funcs)
	for _, t := range p.Types {
		functions = append(functions, t.Funcs...)
		need(t.Name, len(examplesOf(t)) > 0)
	}
	for _, f := range functions {
		need(f.Name, used[f.Name])
	}
	for _, err := range p.values {
		need(err, used[err])
	}
	for name := range shownAt {
		if pkg, symbol, _ := strings.Cut(name, "."); pkg == p.Name && !has[symbol] {
			lines = append(lines, name+" is listed in shownAt and does not exist")
		}
	}
	slices.Sort(lines)
	return lines
}

func TestExamples(t *testing.T) {
	t.Parallel()
	packages := publicPackages(t)
	all := []string{}
	for _, p := range packages {
		for name := range p.examples() {
			all = append(all, p.Name+"."+name)
		}
		t.Run("each type, function and error of "+p.Name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, p.missing(shownAt))
		})
	}
	require.Greater(t, len(packages), 5)

	t.Run("each decision", func(t *testing.T) {
		t.Parallel()
		for what, example := range decisions {
			require.Contains(t, all, example, what)
		}
		for what, example := range shownAt {
			require.Contains(t, all, example, what)
		}
	})
}

// The check finds an Example that is missing, has no output, or is shown nowhere as its name is wrong.
func TestExamples_CheckFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	const code = `package p

// ErrFull is an error.
var ErrFull = errors.New("full")

// T is a type.
type T struct{}

// New is a constructor.
func New() *T { return nil }

// Do is a method.
func (*T) Do() {}

// Run is a function.
func Run() {}
`
	const example = `package p_test

func ExampleT_Do() {
	p.New().Do()
	fmt.Println(p.Run(), p.ErrFull)
	// Output: full
}
`
	for what, c := range map[string]struct {
		example string
		shownAt map[string]string
		want    []string
	}{
		"all is there":            {example, nil, nil},
		"no example":              {"package p_test", nil, []string{"p.ErrFull", "p.New", "p.Run", "p.T"}},
		"renamed to another type": {strings.Replace(example, "T_Do", "U_Do", 1), nil, []string{"p.ErrFull", "p.New", "p.Run", "p.T"}},
		"renamed to the package":  {strings.Replace(example, "T_Do", "", 1), nil, []string{"p.T"}},
		"no output":               {strings.Replace(example, "// Output: full", "", 1), nil, []string{"p.ExampleT_Do has no output"}},
		"an error is not shown":   {strings.Replace(example, ", p.ErrFull", "", 1), nil, []string{"p.ErrFull"}},
		"listed":                  {strings.Replace(example, ", p.ErrFull", "", 1), map[string]string{"p.ErrFull": ""}, nil},
		"listed and shown":        {example, map[string]string{"p.T": ""}, []string{"p.T has an Example and is listed in shownAt"}},
		"listed and gone":         {example, map[string]string{"p.V": ""}, []string{"p.V is listed in shownAt and does not exist"}},
	} {
		p := parsePackage(t, "p", map[string]string{"p.go": code, "p_test.go": c.example})
		require.Equal(t, c.want, p.missing(c.shownAt), what)
	}
}

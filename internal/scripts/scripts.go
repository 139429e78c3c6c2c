package scripts

import (
	"cmp"
	"context"
	"embed"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua include/*.lua
var files embed.FS

// catalogue has every declared script. It does not change after the initialisation of the package.
var catalogue []*Script

// Script is one Lua script. It is immutable and safe for concurrent use. Its text is expanded and hashed at its first
// use, because a process uses few of the scripts.
type Script struct {
	name  string
	text  func() *text
	once  bool
	share *share // nil: calls share no execution
}

// text is the expanded text of a Script, in the forms that are sent.
type text struct {
	script *redis.Script

	sha, source any // strings, as arguments of commands
}

// trait is a property of a script in its declaration.
type trait func(*Script)

// OnceOnly declares a script that must not execute twice for one call. go-redis does not repeat it after a lost
// reply. The caller gets the error, and has to find out whether the script has executed.
func OnceOnly(s *Script) { s.once = true }

// IsOnceOnly reports whether the script is declared OnceOnly.
func (s *Script) IsOnceOnly() bool { return s.once }

// declare adds the script in name.lua to the catalogue. Without that file its first use panics; a test uses every
// script.
func declare(name string, traits ...trait) *Script {
	s := newScript(name, func() string { return expand(load(name + ".lua")) }, traits)
	catalogue = append(catalogue, s)
	return s
}

func newScript(name string, source func() string, traits []trait) *Script {
	s := &Script{name: name, text: sync.OnceValue(func() *text {
		source := source()
		script := redis.NewScript(source)
		return &text{script: script, sha: script.Hash(), source: source}
	})}
	for _, t := range traits {
		t(s)
	}
	return s
}

// includeLine matches a line that stands for the text of include/name.lua.
var includeLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^ *-- include: (\w+)\n`) })

// expand replaces the lines of includes by the texts of their files.
func expand(source string) string {
	return includeLine().ReplaceAllStringFunc(source, func(line string) string {
		return load("include/" + includeLine().FindStringSubmatch(line)[1] + ".lua")
	})
}

func load(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("scripts: " + err.Error())
	}
	return string(text)
}

// All returns every script.
func All() []*Script { return slices.Clone(catalogue) }

// Name returns the script's file name without the extension.
func (s *Script) Name() string { return s.name }

// Source returns the script's text.
func (s *Script) Source() string { return s.text().source.(string) }

// called matches a command in the text of a script. The command that wakes waiters is an argument, verb.
var called = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`redis\.p?call\((?:'([A-Za-z]+)'|verb\b)`)
})

// Commands returns the commands that the script may run, sorted and in lower case. The command that wakes waiters,
// which may be SPUBLISH, is publish.
func (s *Script) Commands() []string {
	var commands []string
	for _, found := range called().FindAllStringSubmatch(s.Source(), -1) {
		commands = append(commands, cmp.Or(strings.ToLower(found[1]), "publish"))
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

// SHA returns the hex SHA-1 under which a server caches the script.
func (s *Script) SHA() string { return s.text().sha.(string) }

// Client has the methods that Run needs; every redis.UniversalClient has them.
type Client interface {
	redis.Scripter
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Run executes the script by its hash or, if the server does not know the hash, by its text, which the server then
// keeps. It blocks for one round trip (two the first time) and for the retries of go-redis, within the timeouts of
// the client's options. After an error the script may have executed or not.
func (s *Script) Run(ctx context.Context, c Client, keys []string, args ...any) *redis.Cmd {
	if s.once {
		return s.RunOnce(ctx, c, keys, args...)
	}
	return plain(s.text().script.Run(ctx, c, keys, args...))
}

// RunOnce is Run without the retries of go-redis after a lost reply, for a caller that has to know whether a copy of
// the call may still execute. Redirections of a cluster are followed.
func (s *Script) RunOnce(ctx context.Context, c Client, keys []string, args ...any) *redis.Cmd {
	cmd := s.runOnce(ctx, c, evalsha, s.text().sha, keys, args)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = s.runOnce(ctx, c, eval, s.text().source, keys, args)
	}
	return plain(cmd)
}

func (s *Script) runOnce(ctx context.Context, c Client, verb, payload any, keys []string, args []any) *redis.Cmd {
	cmd := newOnce(ctx, verb, payload, keys, args)
	_ = c.Process(ctx, cmd) // the error is in the command
	return cmd.Cmd
}

// onceCmd is a command that go-redis sends once: its retry loops call NoRetry.
type onceCmd struct{ *redis.Cmd }

// Once returns cmd for a pipeline that go-redis must not repeat; RunBatch tells why. It still follows the redirections
// of a cluster.
func Once(cmd *redis.Cmd) redis.Cmder { return onceCmd{cmd} }

func (onceCmd) NoRetry() bool { return true }

// evalsha and eval are the commands that call a script by its sha and by its text.
var evalsha, eval any = "evalsha", "eval"

// newOnce returns the command of a call; payload is the sha or the text of its script.
func newOnce(ctx context.Context, verb, payload any, keys []string, args []any) onceCmd {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, verb, payload, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	cmd := redis.NewCmd(ctx, append(words, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3) // routes the command to the key's cluster node
	}
	return onceCmd{cmd}
}

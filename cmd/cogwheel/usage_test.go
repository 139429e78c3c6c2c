package main_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func runWith(ctx context.Context, url string, args ...string) result {
	var stdout, stderr bytes.Buffer
	status := cogwheel.Run(ctx, args, url, &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Shared(t).Addr()
	for what, c := range map[string]struct {
		url    string
		args   string
		status int
		says   string
	}{
		"no command":             {url, "", 2, "Usage:"},
		"unknown command":        {url, "destroy x", 2, `there is no command "destroy"`},
		"inspect without a name": {url, "inspect", 2, "which name?"},
		"unlock without a name":  {url, "unlock --force", 2, "which name?"},
		"permits without a name": {url, "permits --json", 2, "which name?"},
		"limit without a name":   {url, "limit", 2, "which name?"},
		"an empty name":          {url, "inspect ''", 2, "which name?"},
		"two names":              {url, "unlock --force a b", 2, "which name?"},
		"bench with a name":      {url, "bench a", 2, "unexpected argument"},
		"no time":                {url, "inspect --timeout 0s a", 2, "--timeout must be longer than 0"},
		"negative time":          {url, "version --timeout -1s", 2, "--timeout must be longer than 0"},
		"two patterns":           {url, "list a b", 2, "unexpected argument"},
		"a scan of nothing":      {url, "list --scan 0", 2, "--scan must be at least 1"},
		"nothing is held":        {url, "list no-such-*", 1, "no lock or permit is held, and no queue has tasks, under no-such-*"},
		"TLS to a plain port":    {"rediss" + url[len("redis"):], "inspect --timeout 200ms a", 3, "use redis:// if it does not"},
		"unknown flag":           {url, "inspect --all a", 2, "-all"},
		"a flag of another":      {url, "inspect --force a", 2, "-force"},
		"bad duration":           {url, "bench --duration 2h", 2, "--duration must be"},
		"no callers":             {url, "bench --callers 0", 2, "--callers must be"},
		"a rate that is none":    {url, "limit --rate fast api:{7}", 2, "is no N/PERIOD"},
		"a rate of nothing":      {url, "limit --rate 0/s api:{7}", 2, "denies every request"},
		"a burst without a rate": {url, "limit --burst 3 api:{7}", 2, "--burst needs --rate"},
		"a rate of no Limiter":   {url, "limit --rate 3/s smtp", 2, "PREFIX:{KEY}"},
		"a hashed key":           {url, "limit --rate 3/s api:{abc%sha256:00}", 2, "--prefix PREFIX"},
		"keys of no rows":        {url, "limit keys --rows 0 api", 2, "--rows must be at least 1"},
		"keys of no scan":        {url, "limit keys --scan 0 api", 2, "--scan must be at least 1"},
		"keys with a rate":       {url, "limit keys --rate 3/s api", 2, "--rate is for limit NAME"},
		"keys of a key":          {url, "limit keys api:{7}", 2, "the prefix of a Limiter alone"},
		"yes to a limit":         {url, "limit --yes api:{7}", 2, "--yes is for limit reset"},
		"a reset of nothing":     {url, "limit reset --yes api:{7}", 1, "there is no limit"},
		"two algorithms":         {url, "limit --prefix api --window --sliding 7", 2, "another algorithm"},
		"a prefix with braces":   {url, "limit --prefix a{b 7", 2, "prefix"},
		"a name that is none":    {url, "inspect a{b", 2, "can be no name"},
		"nothing of that name":   {url, "inspect nothing", 1, "there is nothing of that name"},
		"tasks without a name":   {url, "tasks", 2, "which name?"},
		"no tasks":               {url, "tasks nothing", 1, "there is no task"},
		"a list of no rows":      {url, "tasks --rows 0 a", 2, "--rows must be at least 1"},
		"retry without --all":    {url, "tasks retry a", 2, "needs --all"},
		"all of a list":          {url, "tasks --all a", 2, "--all and --yes are for"},
		"yes to a pause":         {url, "tasks pause --yes a", 2, "--all and --yes are for"},
		"an unknown word":        {url, "tasks restart a", 2, "which name?"},
		"no failed task":         {url, "tasks delete --all nothing", 1, "there is no failed task"},
		"a pause of no name":     {url, "tasks pause a{b", 2, "hash tag"},
		"no semaphore":           {url, "permits nothing", 1, "there is no semaphore"},
		"no limit":               {url, "limit nothing", 1, "there is no limit"},
		"a name like a flag":     {url, "inspect -- --json", 1, "--json: there is nothing"},
		"no URL":                 {"", "inspect a", 2, "REDIS_URL is not set"},
		"a URL that is none":     {"http://u:hidden@host", "inspect a", 2, "REDIS_URL"},
		"a URL with a bad port":  {"redis://u:hidden@host:port", "inspect a", 2, "REDIS_URL"},
		"a password with a /":    {"redis://u:hidden/1@host", "inspect a", 2, "REDIS_URL"},
		"an unknown option":      {"redis://u:hidden@host?colour=red", "inspect a", 2, "REDIS_URL"},
		"nothing listens":        {"redis://127.0.0.1:1", "inspect a", 3, "connection refused"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := run(t, c.url, words(strings.ReplaceAll(c.args, "''", "' '"))...)
			if what == "an empty name" {
				r = run(t, c.url, "inspect", "")
			}
			require.Equal(t, c.status, r.status, r.stderr)
			require.Contains(t, r.stderr, c.says)
			require.Empty(t, r.stdout)
			require.NotContains(t, r.stderr, "hidden", "no password is shown")
		})
	}
}

// A Redis that hangs ends a command after --timeout.
func TestUsage_RedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Pause()
	defer server.Resume()
	for _, command := range []string{
		"list", "inspect", "permits", "limit", "limit keys", "limit reset --prefix p --yes", "tasks", "unlock",
	} {
		r := run(t, "redis://"+server.Addr(), append(strings.Fields(command), "--timeout", "100ms", "a")...)
		require.Equal(t, 3, r.status)
		require.Contains(t, r.stderr, "did not answer in time")
	}
}

// Keys that are none of the library, and what else may be under a name.
func TestInspect_OtherKeys(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	for what, c := range map[string]struct {
		commands []string
		says     string
	}{
		"a list":                  {[]string{"RPUSH NAME x"}, "other (a key of type list)"},
		"a text":                  {[]string{"SET NAME x"}, "other (a string that is no number, perhaps the lock of another library)"},
		"an old lock":             {[]string{"HSET NAME java:1 1"}, "held, until it is freed: it has no lease"},
		"a token alone":           {[]string{"SET redisson_lock_token:{NAME} 1700000000000000"}, "token 1700000000000000"},
		"leases without permits":  {[]string{"ZADD {NAME}:timeout 1 x"}, "permits not set"},
		"permits that were taken": {[]string{"SET NAME 3", "SET {NAME}:fence 7"}, "semaphore"},
		"a Limiter without a key": {[]string{"SET NAME:{} 1900000000000000 PX 90000"}, ""},
		"metadata with escapes":   {[]string{"HSET NAME a:1:m=%1B%5B2J 1"}, `"\x1b[2J"`},
	} {
		t.Run(what, func(t *testing.T) {
			name := strings.ReplaceAll(name+":"+what, " ", "_")
			for _, command := range c.commands {
				var args []any
				for w := range strings.FieldsSeq(command) {
					args = append(args, strings.ReplaceAll(w, "NAME", name))
				}
				require.NoError(t, rdb.Do(t.Context(), args...).Err())
			}
			if c.says == "" {
				name, c.says = name+":{}", "limiter"
			}
			got := must(t, "redis://"+redistest.Shared(t).Addr(), "inspect", name)
			require.Contains(t, normalised(got, inText[len(inText)-1:]), c.says)
		})
	}
}

// The help texts name every command, and fit a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	help := must(t, "", "help")
	for _, args := range [][]string{{"-h"}, {"--help"}} {
		require.Equal(t, help, must(t, "", args...))
	}
	for _, command := range []string{"list", "inspect", "permits", "limit", "tasks", "unlock", "bench", "version"} {
		require.Regexp(t, `(?m)^    `+command+`\b`, help)
		text := must(t, "", command, "-h")
		require.Regexp(t, `^Usage: cogwheel `+command+` `, text)
		require.Contains(t, text, "-timeout")
		help += text
	}
	for line := range strings.Lines(help) {
		require.LessOrEqual(t, len(line), 121, line)
	}
}

// The statuses that the help lists are those of the program.
func TestHelp_Statuses(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	declared := regexp.MustCompile(`exit\w+\s+= (\d)`).FindAllStringSubmatch(string(source), -1)
	listed := regexp.MustCompile(`(?m)^    (\d)   `).FindAllStringSubmatch(must(t, "", "help"), -1)
	require.Len(t, listed, len(declared))
	for i := range declared {
		require.Equal(t, declared[i][1], listed[i][1])
	}
}

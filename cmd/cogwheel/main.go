// Cogwheel looks into the locks, semaphores, rate limits and delayed tasks that a Redis holds, and frees a lock whose
// holder is known to be dead.
//
//	go install github.com/cogwheel-go/cogwheel/cmd/cogwheel@latest
//	REDIS_URL=redis://localhost:6379 cogwheel inspect stock:42
//
// cogwheel help lists the commands. docs/tool.md shows each of them at work.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Exit statuses.
const (
	exitDone     = 0
	exitNotFound = 1 // there is no such object, or the lock is not held, or check found a fault
	exitUsage    = 2 // wrong arguments, or a flag is missing
	exitRedis    = 3 // Redis did not answer, or refused the command
)

const help = `cogwheel looks into the locks, semaphores, rate limits and delayed tasks that a Redis holds.

Usage:

    cogwheel COMMAND [flags] [NAME]

Commands:

    list [PATTERN] lists the locks and permits that are held, and the queues with tasks, under names such as 'orders:*'
    inspect NAME   shows what exists under a name: which kind of object, its holders, waiters, permits, limit or tasks
    permits NAME   shows a semaphore: permits that are free and held, and until when
    limit NAME     shows a rate limit: the limit and what is left of it; limit -h says how to list the keys of a
                   Limiter that are nearest to their limit, and how to reset one
    tasks NAME     lists the tasks of a queue of package delay: claimed, pending and failed ones; tasks -h says how to
                   pause the queue, and how to retry or delete failed tasks
    unlock NAME    frees a lock whose holder is known to be dead
    check          tells whether the library can work with this Redis, as this user, and what to do if it cannot
    bench          measures this server: round trip, locks and limiter decisions per second
    version        shows the version of this tool
    help           shows this text; cogwheel COMMAND -h shows the flags of a command

list, inspect, permits, limit NAME, limit keys and tasks NAME change nothing in Redis. check and bench use keys of
their own, which are gone when they end.

The environment variable REDIS_URL says which Redis:

    redis://USER:PASSWORD@HOST:PORT/DB                       one server; unix:// for a socket
    redis://HOST:PORT/DB?master_name=NAME&addr=HOST2:PORT2   the primary that these Sentinels know
    redis://HOST:PORT?addr=HOST2:PORT2                       Redis Cluster, found through these nodes

All forms take a user and a password; with rediss:// they use TLS. Further options of the client are parameters,
such as read_timeout=1s: those of ParseURL, ParseFailoverURL and ParseClusterURL of go-redis.

Exit status:

    0   done
    1   there is no such object, or the lock is not held (by that holder), or check found what makes calls fail
    2   wrong usage, or unlock, limit reset or tasks needs a flag or an answer that says what to do
    3   Redis did not answer, or refused the command
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Getenv("REDIS_URL"), streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(status)
}

// Errors of these kinds have the message for exitNotFound; a usageError has that for exitUsage.
var (
	errNotFound = errors.New("not found")
	errFault    = errors.New("calls will fail")
)

type usageError string

func (e usageError) Error() string { return string(e) }

// command is one of the commands: its arguments, what it does, and its own flags.
type command struct {
	usage    string
	about    string
	needName bool     // exactly one
	mayName  bool     // one or none
	names    bool     // any number
	verbs    []string // words that may precede the name
	offline  bool     // without Redis
	paged    bool     // the timeout is that of a page
	flags    func(*flag.FlagSet, *options)
	run      func(context.Context, *tool) error
}

// options are the flags of all commands.
type options struct {
	json    bool
	timeout time.Duration

	scan int64 // list and limit keys
	rows int   // tasks and limit keys
	all  bool  // tasks
	yes  bool  // tasks and limit reset

	holder string // unlock
	force  bool

	packages string // check

	rate, prefix string // limit
	burst        int64
	algorithm    ratelimit.Algorithm

	duration time.Duration // bench
	callers  int
}

// counts sets the algorithm of a Limiter by a flag.
func (o *options) counts(a ratelimit.Algorithm) func(string) error {
	return func(value string) error {
		if value != "true" || o.algorithm != ratelimit.GCRA {
			return errors.New("it has no value, and excludes another algorithm")
		}
		o.algorithm = a
		return nil
	}
}

var commands = map[string]command{
	"list": {
		usage: "list [--json] [--scan N] [PATTERN]", mayName: true, paged: true, run: list,
		about: "Lists the locks and permits that are held, and the queues that have tasks, with a name that matches\n" +
			"PATTERN as in the SCAN of Redis, or all. A list is no snapshot. It changes nothing in Redis.",
		flags: func(f *flag.FlagSet, o *options) {
			f.Int64Var(&o.scan, "scan", 1_000_000, "how many keys of each server to look through")
		},
	},
	"version": {
		usage: "version [--json]", offline: true, run: version,
		about: "Shows the version of this tool, which is that of its module.",
	},
	"inspect": {
		usage: "inspect [--json] NAME", needName: true, run: inspect,
		about: "Shows what exists under a name. It changes nothing in Redis.",
	},
	"permits": {
		usage: "permits [--json] NAME", needName: true, run: permits,
		about: "Shows the semaphores of a name. It changes nothing in Redis.",
	},
	"limit": {
		usage: "limit [--json] [--rate N/PERIOD [--burst N]] [--prefix PREFIX [--window | --sliding]] NAME\n" +
			"       cogwheel limit keys [--json] [--rows N] [--scan N] PREFIX\n" +
			"       cogwheel limit reset [--json] [--yes] [--prefix PREFIX [--window | --sliding]] NAME",
		needName: true, verbs: []string{"keys", "reset"}, run: limit, paged: true,
		about: "Shows a rate limit. NAME is that of a StoredLimiter, or that of a key of a Limiter in Redis,\n" +
			"such as api:{user-7}. The limit of a Limiter is set in the code: with --rate, the tool tells how many\n" +
			"permits are left. It changes nothing in Redis.\n\n" +
			"With keys, it lists the keys of the Limiters with a prefix, those nearest to their limit first. With\n" +
			"reset, all permits of a key of a Limiter can be used again; it asks before.",
		flags: func(f *flag.FlagSet, o *options) {
			f.IntVar(&o.rows, "rows", 100, "with keys, how many to show at most")
			f.Int64Var(&o.scan, "scan", 1_000_000, "with keys, how many keys of each server to look through")
			f.BoolVar(&o.yes, "yes", false, "with reset, does so without a question")
			f.StringVar(&o.rate, "rate", "", "the limit of a Limiter: `N/PERIOD`, such as 10/s, 600/m or 5/250ms")
			f.Int64Var(&o.burst, "burst", 0, "the burst of a Limiter; the default is N of --rate")
			f.StringVar(&o.prefix, "prefix", "", "the prefix of a Limiter; NAME is the key as the service passes it")
			const has = "with --prefix, the Limiter has the algorithm "
			f.BoolFunc("window", has+"FixedWindow", o.counts(ratelimit.FixedWindow))
			f.BoolFunc("sliding", has+"SlidingWindow", o.counts(ratelimit.SlidingWindow))
		},
	},
	"tasks": {
		usage: "tasks [--json] [--rows N] NAME\n       cogwheel tasks (pause | resume) NAME\n" +
			"       cogwheel tasks (retry | delete) --all [--yes] NAME", needName: true, run: tasks,
		verbs: []string{"pause", "resume", "retry", "delete"},
		about: "Lists the tasks of a queue of package delay: claimed ones by the ends of their leases, pending ones\n" +
			"by due time, and failed ones from the oldest. A list is no snapshot. It changes nothing in Redis.\n\n" +
			"With pause, no process claims a task of the queue until resume. Tasks that are claimed run.\n" +
			"With retry, all failed tasks are due now; with delete, they are gone. Both ask before.",
		flags: func(f *flag.FlagSet, o *options) {
			f.BoolVar(&o.all, "all", false, "retries or deletes all tasks that have failed by now")
			f.BoolVar(&o.yes, "yes", false, "does so without a question")
			f.IntVar(&o.rows, "rows", 100, "how many tasks of each kind to show at most")
		},
	},
	"unlock": {
		usage: "unlock [--json] (--holder ID | --force) NAME", needName: true, run: unlock,
		about: "Frees a lock whose holder is known to be dead. A holder that lives is notified at once,\n" +
			"or learns of it at its next renewal. Without a flag, unlock shows the holders and frees nothing.",
		flags: func(f *flag.FlagSet, o *options) {
			f.StringVar(&o.holder, "holder", "", "frees the hold with this `ID`, as inspect shows it, and no other")
			f.BoolVar(&o.force, "force", false, "frees the lock, whatever holds it by now")
		},
	},
	"check": {
		usage: "check [--json] [--packages LIST] [NAME...]", names: true, run: checkAll,
		about: "Asks whether the library can work with this Redis: reachable, versions, rights of this user,\n" +
			"writable, topology, eviction, persistence, timeouts. With names, it asks for the keys and\n" +
			"channels of objects of these names as well. Run it as the user of the service.",
		flags: func(f *flag.FlagSet, o *options) {
			f.StringVar(&o.packages, "packages", strings.Join(packages, ","),
				"the packages that the service uses: a `LIST` with commas")
		},
	},
	"bench": {
		usage: "bench [--json] [--duration D] [--callers N]", run: bench,
		about: "Measures this server from here, with keys of its own that it removes. It loads the server for\n" +
			"six times --duration.",
		flags: func(f *flag.FlagSet, o *options) {
			f.DurationVar(&o.duration, "duration", time.Second, "how long each measurement takes, 10ms to 1m")
			f.IntVar(&o.callers, "callers", 64, "how many concurrent callers there are, 1 to 1000")
		},
	},
}

// tool is one run of a command.
type tool struct {
	options
	name  string
	verb  string   // of verbs
	names []string // of check
	rdb   redis.UniversalClient
	in    io.Reader // of the answer to a question
	out   io.Writer
	note  io.Writer // for what the reader of the output must know
}

// streams are those of a process.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs the command line and returns the exit status.
func run(ctx context.Context, args []string, redisURL string, std streams) int {
	if len(args) == 0 {
		_, _ = io.WriteString(std.err, help)
		return exitUsage
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		_, _ = io.WriteString(std.out, help)
		return exitDone
	}
	err := runCommand(ctx, args[0], args[1:], redisURL, std)
	var wrong usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &wrong) || errors.Is(err, cogwheel.ErrInvalid): // the one error of all packages
		printf(std.err, "cogwheel: %v\n", err)
		return exitUsage
	case errors.Is(err, errNotFound) || errors.Is(err, errFault):
		printf(std.err, "cogwheel: %v\n", err)
		return exitNotFound
	}
	printf(std.err, "cogwheel: %v\n", explain(err, redisURL))
	return exitRedis
}

func runCommand(ctx context.Context, name string, args []string, redisURL string, std streams) error {
	c, known := commands[name]
	if !known {
		return usageError(fmt.Sprintf("there is no command %q; cogwheel help lists the commands", name))
	}
	t := &tool{in: std.in, out: std.out, note: std.err}
	operands, err := t.parse(c, name, args)
	if err != nil {
		return err
	}
	if len(operands) == 2 && slices.Contains(c.verbs, operands[0]) {
		t.verb, operands = operands[0], operands[1:]
	}
	switch {
	case c.needName && (len(operands) != 1 || operands[0] == ""):
		return usageError("which name? usage: cogwheel " + c.usage)
	case t.timeout <= 0:
		return usageError("--timeout must be longer than 0")
	case c.names:
		t.names = operands
	case c.mayName && len(operands) == 1:
		t.name = operands[0]
	case !c.needName && len(operands) > 0:
		return usageError("unexpected argument; usage: cogwheel " + c.usage)
	case c.needName:
		t.name = operands[0]
	}
	if c.offline {
		return c.run(ctx, t)
	}
	if t.rdb, err = connect(redisURL); err != nil {
		return err
	}
	defer t.rdb.Close()
	err = t.runWithin(ctx, c)
	if err == nil || errors.Is(err, errNotFound) {
		t.noteReplica(ctx)
	}
	return err
}

// runWithin runs a command within its timeout.
func (t *tool) runWithin(ctx context.Context, c command) error {
	if c.paged || t.all {
		return c.run(ctx, t)
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout+10*t.duration)
	defer cancel()
	return c.run(ctx, t)
}

// parse reads the flags, which may stand before and after the operands; after -- there are operands only.
func (t *tool) parse(c command, name string, args []string) (operands []string, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&t.json, "json", false, "prints JSON")
	flags.DurationVar(&t.timeout, "timeout", 5*time.Second, "how long Redis may take to answer")
	if c.flags != nil {
		c.flags(flags, &t.options)
	}
	for {
		switch err = flags.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			printf(t.out, "Usage: cogwheel %s\n\n%s\n\nFlags:\n\n", c.usage, c.about)
			flags.SetOutput(t.out)
			flags.PrintDefaults()
			return nil, err
		case err != nil:
			return nil, usageError(fmt.Sprintf("%v; usage: cogwheel %s", err, c.usage))
		}
		rest := flags.Args()
		if parsed := len(args) - len(rest); len(rest) == 0 || parsed > 0 && args[parsed-1] == "--" {
			return append(operands, rest...), nil
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
}

// explain adds to an error of Redis what to do about it.
func explain(err error, redisURL string) error {
	text, secure := err.Error(), strings.HasPrefix(redisURL, "rediss:")
	switch {
	case strings.Contains(text, "all sentinels specified in configuration are unreachable") &&
		strings.Contains(text, redis.Nil.Error()):
		return fmt.Errorf("%w: the Sentinels do not know the master_name of REDIS_URL", err)
	case strings.Contains(text, "first record does not look like a TLS handshake"),
		secure && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: does this port of Redis take TLS? use redis:// if it does not", err)
	case !secure && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		return fmt.Errorf("%w: the server closed the connection: use rediss:// if its port takes TLS alone", err)
	case strings.Contains(text, "READONLY"):
		return fmt.Errorf("%w: the server is a replica: REDIS_URL has to name the primary", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: Redis did not answer in time (see --timeout)", err)
	case strings.Contains(text, "MOVED ") || strings.Contains(text, "CROSSSLOT"):
		return fmt.Errorf("%w: the server is a node of a cluster: add ?addr=HOST:PORT to REDIS_URL", err)
	case strings.Contains(text, "NOPERM"),
		strings.Contains(text, "can't run this command"), strings.Contains(text, "ACL failure in script"):
		return fmt.Errorf("%w: the user of REDIS_URL lacks a right", err)
	}
	return err
}

package scripts

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// refusal is an error of the server as the script or the command in it gave it, without what servers put
// around errors of scripts: the script's hash and line, and before Redis 7 a prefix. Of a command that the server does
// not know it leaves out the arguments.
type refusal struct {
	answer redis.Error
	text   string
}

func (r refusal) Error() string { return r.text }
func (r refusal) Unwrap() error { return r.answer }

// RedisError marks an answer of the server.
func (refusal) RedisError() {}

// nonLocalKey is how a node of a cluster refuses a command of a script; Redis 6.2 and 7 say different things before it.
const nonLocalKey = "attempted to access a non local key"

// Interrupted reports whether a command of a script was refused because its key was not on the node while a slot
// migrated. The script may have written before.
func Interrupted(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && strings.Contains(answer.Error(), nonLocalKey)
}

// before7 is how servers before Redis 7 report an error of a command within a script.
var before7 = regexp.MustCompile(`^ERR Error running script \(call to f_[0-9a-f]+\): @\w+:\d+: (?:@\w+: ?\d+: )?-?`)

// from7 is what Redis 7 puts behind an error of a command within a script.
var from7 = regexp.MustCompile(` script: [0-9a-f]+, on @\w+:\d+\.?$`)

// plain gives a command whose script failed the error of what failed in it.
func plain(cmd *redis.Cmd) *redis.Cmd {
	answer, ok := cmd.Err().(redis.Error) //nolint:errorlint // go-redis does not wrap answers
	if !ok {
		return cmd
	}
	text := from7.ReplaceAllLiteralString(answer.Error(), "")
	text = before7.ReplaceAllLiteralString(text, "")
	if strings.HasPrefix(text, "ERR unknown command") { // a renamed EVALSHA or EVAL: its arguments are a hash or a text
		text, _, _ = strings.Cut(text, ", with args beginning with:")
	}
	if text != answer.Error() {
		cmd.SetErr(refusal{answer, strings.TrimSpace(text)})
	}
	return cmd
}

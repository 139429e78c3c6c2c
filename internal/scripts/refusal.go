package scripts

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// refusal is an error of a script, or of a command in it, without the text that servers add: the hash and the line of
// the script, and before Redis 7 a prefix. The error of an unknown command has no arguments.
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

// before7 matches the prefix that servers before Redis 7 add to an error of a command in a script.
var before7 = regexp.MustCompile(`^ERR Error running script \(call to f_[0-9a-f]+\): @\w+:\d+: (?:@\w+: ?\d+: )?-?`)

// from7 matches the text that Redis 7 and later add after an error of a command in a script.
var from7 = regexp.MustCompile(` script: [0-9a-f]+, on @\w+:\d+\.?$`)

// plain replaces the error of a failed script by a refusal without the added text.
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

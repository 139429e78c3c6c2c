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

// Answer returns the text of an answer of the server, without the text that servers add to an error of a script, and
// whether it is such an error. ok is false if err is no answer of the server.
func Answer(err error) (text string, inScript, ok bool) {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return "", false, false
	}
	if r, is := errors.AsType[refusal](err); is {
		answer = r.answer
	}
	text = bare(answer.Error())
	return text, text != answer.Error(), true
}

// A node of a cluster refuses a command of a script with one of these if not all keys of the command are there. Redis
// 6.2 and 7 say different things before the first. The second, for several keys, came with Redis 7.2.
const (
	nonLocalKey  = "attempted to access a non local key"
	nonLocalKeys = "undeclared keys were accessed during rehashing of the slot"
)

// Interrupted reports whether a command of a script was refused because its keys were not on the node while a slot
// migrated. The script may have written before.
func Interrupted(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && (strings.Contains(answer.Error(), nonLocalKey) || strings.Contains(answer.Error(), nonLocalKeys))
}

// before7 matches the prefix that servers before Redis 7, KeyDB and Dragonfly add to an error of a script. The error of
// a pcall that the script returns has the second part alone.
var before7 = regexp.MustCompile(
	`^(?:ERR Error running script \(call to (?:f_)?[0-9a-f]+\): (?:@\w+:\d+: )?(?:@\w+: ?\d+: )?|@\w+: ?\d+: )-?`)

// from7 matches the text that Redis 7 and later add after an error of a script.
var from7 = regexp.MustCompile(` script: [0-9a-f]+, on @\w+:\d+\.?$`)

// bare removes the text that servers add to an error of a script.
func bare(text string) string {
	return before7.ReplaceAllLiteralString(from7.ReplaceAllLiteralString(text, ""), "")
}

// plain replaces the error of a failed script by a refusal without the added text.
func plain(cmd *redis.Cmd) *redis.Cmd {
	answer, ok := cmd.Err().(redis.Error) //nolint:errorlint // go-redis does not wrap answers
	if !ok {
		return cmd
	}
	text := bare(answer.Error())
	if strings.HasPrefix(text, "ERR unknown command") { // a renamed EVALSHA or EVAL: its arguments are a hash or a text
		text, _, _ = strings.Cut(text, ", with args beginning with:")
	}
	if text != answer.Error() {
		cmd.SetErr(refusal{answer, strings.TrimSpace(text)})
	}
	return cmd
}

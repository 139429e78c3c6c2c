package cogwheeltest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// request is one command as a client sent it.
type request struct {
	raw   []byte
	words []string // the command and its arguments
}

// cutRequest takes the first whole command from what a client has sent. It returns false if there is none
// yet. What is not a command goes on to the server as it is.
func cutRequest(sent []byte) (r request, rest []byte, ok bool) {
	count, after, ok := cutNumber(sent, '*')
	if !ok {
		if len(sent) == 0 || sent[0] == '*' && !bytes.Contains(sent, crlf) {
			return request{}, sent, false
		}
		return request{raw: sent}, nil, true
	}
	for range count {
		length, text, ok := cutNumber(after, '$')
		if !ok || length < 0 || len(text) < length+len(crlf) {
			return request{}, sent, false
		}
		r.words = append(r.words, string(text[:length]))
		after = text[length+len(crlf):]
	}
	r.raw = sent[:len(sent)-len(after)]
	return r, after, true
}

var crlf = []byte("\r\n")

// cutNumber reads a line that is a mark and a number.
func cutNumber(text []byte, mark byte) (n int, after []byte, ok bool) {
	line, after, ok := bytes.Cut(text, crlf)
	if !ok || len(line) == 0 || line[0] != mark {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	return n, after, err == nil
}

// newRequest returns a command of the server's own.
func newRequest(words ...string) request {
	raw := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		raw = fmt.Appendf(raw, "$%d\r\n%s\r\n", len(word), word)
	}
	return request{raw: raw, words: words}
}

// setUp are the commands that belong to a connection. They are not counted as calls.
var setUp = []string{
	"AUTH", "CLIENT", "ECHO", "HELLO", "PING", "QUIT", "SELECT",
	"PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "UNSUBSCRIBE",
}

// isCall reports whether the command is one that faults count, and is about one of the names, if any.
func (r *request) isCall(names []string) bool {
	if len(r.words) == 0 || slices.Contains(setUp, strings.ToUpper(r.words[0])) {
		return false
	}
	return len(names) == 0 || slices.ContainsFunc(r.keys(), func(key string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return isKeyOf(key, name) })
	})
}

// keys returns the keys of a script, or what may be one for another command.
func (r *request) keys() []string {
	switch strings.ToUpper(r.words[0]) {
	case "EVAL", "EVALSHA":
		if len(r.words) < 3 {
			return nil
		}
		n, err := strconv.Atoi(r.words[2])
		if err != nil || n < 0 || 3+n > len(r.words) {
			return nil
		}
		return r.words[3 : 3+n]
	}
	return r.words[1:]
}

// isKeyOf reports whether a key is the name itself, or made of it: {name}:part, part:{name} or, for a name
// with a hash tag, name:part and part:name.
func isKeyOf(key, name string) bool {
	return key == name || strings.Contains(key, "{"+name+"}") ||
		strings.HasPrefix(key, name+":") || strings.HasSuffix(key, ":"+name)
}

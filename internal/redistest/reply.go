package redistest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Reply is a reply of a server: nil, an int64, a string, a bool, a float64, an error, or a []any of these.
type Reply any

// ParseReply makes a reply of words, which a fuzz target can change and a person can read: integers stand for
// themselves, as do nil, true and false; ( and ) enclose a list; ~ precedes a float, ! an error, ' a string. In
// texts, _ stands for a space and | for a line feed. Any other word is a string. Lists that are not closed are
// closed at the end; words after the first reply are left out.
func ParseReply(text string) Reply {
	words := strings.Fields(text)
	r, _ := parseReply(words, 0)
	return r
}

// mostNested bounds the depth of lists: go-redis reads them by recursion.
const mostNested = 8

func parseReply(words []string, depth int) (r Reply, rest []string) {
	if len(words) == 0 {
		return nil, nil
	}
	word, rest := words[0], words[1:]
	if word == "(" {
		list := []any{}
		for len(rest) > 0 && rest[0] != ")" && depth < mostNested {
			var element Reply
			element, rest = parseReply(rest, depth+1)
			list = append(list, element)
		}
		if len(rest) > 0 {
			rest = rest[1:]
		}
		return list, rest
	}
	text := strings.NewReplacer("_", " ", "|", "\n").Replace(word[1:])
	switch {
	case word == "nil":
		return nil, rest
	case word == "true", word == "false":
		return word == "true", rest
	case word[0] == '!':
		return ServerError(text), rest
	case word[0] == '\'':
		return text, rest
	case word[0] == '~':
		if f, err := strconv.ParseFloat(word[1:], 64); err == nil {
			return f, rest
		}
	}
	if n, err := strconv.ParseInt(word, 10, 64); err == nil {
		return n, rest
	}
	return word, rest
}

// ServerError is an error as a server answers.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// writeReply writes a reply in RESP3. The writer keeps errors for its Flush.
func writeReply(w *bufio.Writer, r Reply) {
	switch r := r.(type) {
	case nil:
		_, _ = fmt.Fprint(w, "_\r\n")
	case int64:
		_, _ = fmt.Fprintf(w, ":%d\r\n", r)
	case bool:
		_, _ = fmt.Fprintf(w, "#%c\r\n", strconv.FormatBool(r)[0])
	case float64:
		_, _ = fmt.Fprintf(w, ",%v\r\n", r)
	case error:
		text := r.Error()
		if strings.ContainsAny(text, "\r\n") || text == "" {
			_, _ = fmt.Fprintf(w, "!%d\r\n%s\r\n", len(text), text)
		} else {
			_, _ = fmt.Fprintf(w, "-%s\r\n", text)
		}
	case string:
		_, _ = fmt.Fprintf(w, "$%d\r\n%s\r\n", len(r), r)
	case []any:
		_, _ = fmt.Fprintf(w, "*%d\r\n", len(r))
		for _, element := range r {
			writeReply(w, element)
		}
	default:
		panic(fmt.Sprintf("redistest: no reply: %T", r))
	}
}

// Replying is a server in memory that answers every command with a reply that the test chooses, whatever the
// command is.
type Replying struct {
	// RoundTrip is how long an answer takes. In a bubble, time passes for a caller that asks again at once.
	RoundTrip time.Duration

	reply atomic.Pointer[Reply]
}

// Set sets the reply to the commands that arrive from now on.
func (s *Replying) Set(r Reply) { s.reply.Store(&r) }

// Client returns a client of the server, which the test must close. Its connections live in the bubble of the
// test, if there is one.
func (s *Replying) Client(testing.TB) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "replying:1", MaxRetries: -1, DisableIdentity: true, PoolSize: 4,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go s.serve(server)
			return client, nil
		},
		MaintNotificationsConfig: &maintnotifications.Config{ // see options of cogwheeltest
			Mode: maintnotifications.ModeDisabled, EndpointType: maintnotifications.EndpointTypeNone,
		},
	})
}

// serve answers until the client closes the connection.
func (s *Replying) serve(conn net.Conn) {
	defer conn.Close()
	in, out := bufio.NewReader(conn), bufio.NewWriter(conn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		var r Reply = ServerError("ERR unknown command 'HELLO'")
		if !strings.EqualFold(args[0], "hello") {
			r = *s.reply.Load()
		}
		writeReply(out, r)
		if in.Buffered() > 0 { // a pipeline
			continue
		}
		time.Sleep(s.RoundTrip)
		if err := out.Flush(); err != nil {
			return
		}
	}
}

// readCommand reads a command as clients send it: a list of strings.
func readCommand(in *bufio.Reader) (args []string, err error) {
	number := func(mark byte) (n int) {
		line, readErr := in.ReadString('\n')
		if readErr != nil || len(line) < 3 || line[0] != mark {
			err = io.ErrUnexpectedEOF
			return 0
		}
		n, err = strconv.Atoi(line[1 : len(line)-2])
		return n
	}
	count := number('*')
	for range count {
		size := number('$')
		if err != nil {
			break
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(in, text); err != nil {
			break
		}
		args = append(args, string(text[:size]))
	}
	if err == nil && len(args) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return args, err
}

// countCommands returns the number of commands in what a client sends.
func countCommands(call []byte) (n int) {
	in := bufio.NewReader(bytes.NewReader(call))
	for {
		if _, err := readCommand(in); err != nil {
			return n
		}
		n++
	}
}

// skipReply reads a reply.
func skipReply(in *bufio.Reader) error {
	line, err := in.ReadString('\n')
	if err != nil || len(line) < 3 {
		return cmp.Or(err, io.ErrUnexpectedEOF)
	}
	size, _ := strconv.Atoi(line[1 : len(line)-2])
	elements := 0
	switch line[0] {
	case '$', '!', '=':
		if size >= 0 {
			_, err = in.Discard(size + 2)
		}
		return err
	case '*', '~', '>':
		elements = size
	case '%':
		elements = 2 * size
	}
	for range elements {
		if err := skipReply(in); err != nil {
			return err
		}
	}
	return nil
}

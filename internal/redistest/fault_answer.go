package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"sync"
)

// answer is that of a proxy: an error to calls.
type answer struct {
	match    []byte
	text     string
	executed bool

	mu    sync.Mutex
	calls [][]byte
}

// Answer answers each call whose bytes contain match, letter case aside, with an error of that text for each of its
// commands, as a proxy does. If executed is true, the server executes the call, and its reply is lost; otherwise it
// does not get the call. An empty match ends it.
func (d *FaultDialer) Answer(match, text string, executed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conditions.answer = nil
	if match != "" {
		d.conditions.answer = &answer{match: bytes.ToLower([]byte(match)), text: text, executed: executed}
	}
}

// Answered reports whether Answer, since it was called last, has answered a call that contains match.
func (d *FaultDialer) Answered(match string) bool {
	a := d.state().answer
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	lower := bytes.ToLower([]byte(match))
	return slices.ContainsFunc(a.calls, func(call []byte) bool { return bytes.Contains(call, lower) })
}

// matches records a call that is to be answered.
func (a *answer) matches(call []byte) bool {
	if a == nil {
		return false
	}
	lower := bytes.ToLower(call)
	if !bytes.Contains(lower, a.match) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, lower)
	return true
}

// answer gives a call the answer in the place of its replies.
func (c *faultConn) answer(call []byte, a *answer) {
	c.d.effects.Add(1)
	commands := countCommands(call)
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.executed {
		c.lost += commands
	}
	for range commands {
		c.held = fmt.Appendf(c.held, "-%s\r\n", a.text)
	}
}

// loseReplies reads the replies in whose places there are answers.
func (c *faultConn) loseReplies() error {
	c.mu.Lock()
	n := c.lost
	c.lost = 0
	c.mu.Unlock()
	if n == 0 {
		return nil
	}
	in := bufio.NewReader(c.Conn)
	for range n {
		if err := skipReply(in); err != nil {
			return err
		}
	}
	return nil
}

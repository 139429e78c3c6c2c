package sim

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	resp "github.com/alicebob/miniredis/v2/server"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// server is the embedded server, with faults, and a record of the scripts it executed.
type server struct {
	redis *miniredis.Miniredis
	front *resp.Server // of redis, also when that is closed
	start time.Time    // of the bubble

	recording sync.Mutex // held while a command runs that is judged: they run in the order of their stamps

	mu       sync.Mutex
	peers    map[*resp.Peer]*peer // clients; commands of scripts have peers of their own
	recorded map[*resp.Peer]int   // the places of executions whose replies are recorded, or -1 before
	refusals []*refusal
	ahead    time.Duration // of the server's clock
	wrote    bool          // the script that runs
	executed []execution
	running  int     // the place of the script that runs among them
	primary  address // of this server
	old      *deposed
	password string
	last     int64   // the last stamp
	lost     []int64 // when data was lost, or the clock moved: instants of the bubble
}

// execution is a command of a client that the server executed.
type execution struct {
	at    int64 // nanoseconds of the bubble
	clock int64 // microseconds of the server's clock
	link  int
	name  string // of a script without its extension, or of the command
	keys  []string
	rate  int64 // of rate_set
	per   time.Duration

	ran     bool // of a script: a command of it was executed, so the server knew the script
	refused bool // one of its commands was refused: then it has changed nothing

	decision *decision // of a script that decides requests for permits
	task     *taskScript
}

// refusal is a fault of the server: an error in place of commands.
type refusal struct {
	until time.Time
	match func(command string, args []string, inScript bool) bool
	reply string
	first bool // of a script, only until it has written
	met   func()
}

// peer is a connection as the server sees it.
type peer struct {
	link  int
	to    address // as it was dialed
	stale bool    // it leads to a server that has become a replica
}

// enterCommand tells the server which process a connection is of. It has no reply.
const enterCommand = "SIM.ENTER"

func newServer(start time.Time) (*server, error) {
	s := &server{start: start, primary: primaryAddr, password: firstPassword}
	s.peers, s.recorded = make(map[*resp.Peer]*peer), make(map[*resp.Peer]int)
	var err error
	if s.redis, err = embedded(time.Now()); err != nil {
		return nil, err
	}
	s.front = s.redis.Server()
	s.front.SetPreHook(s.before)
	return s, nil
}

// embedded returns an embedded server without a listener.
func embedded(now time.Time) (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	m.SetTime(now)
	c, err := m.Dial() // makes the server run without a listener
	if err != nil {
		return nil, err
	}
	return m, c.Close()
}

// serve connects a process.
func (s *server) serve(c net.Conn, of *conn) {
	number, to := strconv.Itoa(of.link.number), string(of.to)
	enter := fmt.Sprintf("*3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n",
		len(enterCommand), enterCommand, len(number), number, len(to), to)
	of.link.net.mu.Lock()
	of.up.addLocked(time.Now(), []byte(enter))
	of.link.net.mu.Unlock()
	s.redis.Server().ServeConn(c)
}

// before is called before each command, also before those of scripts. It reports whether it has answered.
func (s *server) before(p *resp.Peer, command string, args ...string) (done bool) {
	if command == enterCommand {
		s.enter(p, args[0], address(args[1]))
		return true
	}
	s.mu.Lock()
	client, outer := s.peers[p]
	if outer {
		if old := s.deposedLocked(client); old != nil {
			s.mu.Unlock()
			old.answer(p, command, args)
			return true
		}
		if s.answersLocked(p, client, command, args) {
			s.mu.Unlock()
			return true
		}
	}
	_, recorded := s.recorded[p]
	name := nameOf(command, args)
	if outer && !recorded && judged(name) {
		s.mu.Unlock()
		s.record(p, client, command, args)
		return true
	}
	if !outer && command != "SCRIPT" {
		s.executed[s.running].ran = true
	}
	now := time.Now()
	for _, r := range s.refusals {
		if now.Before(r.until) && !(r.first && s.wrote && !outer) && r.match(strings.ToLower(command), args, !outer) {
			if !outer && command != "SCRIPT" {
				s.executed[s.running].refused = true
			}
			s.mu.Unlock()
			r.met()
			p.WriteError(r.reply)
			return true
		}
	}
	if !outer {
		s.wrote = s.wrote || isWrite(strings.ToLower(command))
		s.mu.Unlock()
		return false
	}
	clock := now.Add(s.ahead)
	e := execution{
		at: s.stamp(), clock: clock.UnixMicro(), link: client.link, name: name, keys: keysOf(command, args),
		ran: !strings.HasPrefix(command, "EVAL"),
	}
	if strings.HasPrefix(e.name, "rate_set") {
		arguments := args[2+len(e.keys):]
		ms, _ := strconv.ParseInt(arguments[2], 10, 64)
		e.rate, _ = strconv.ParseInt(arguments[1], 10, 64)
		e.per = time.Duration(ms) * time.Millisecond
	}
	s.executed = append(s.executed, e)
	number := len(s.executed) - 1
	if recorded {
		s.recorded[p] = number
	}
	s.mu.Unlock()
	s.redis.SetTime(clock) // waits for a script that runs
	s.mu.Lock()
	s.wrote, s.running = false, number
	s.mu.Unlock()
	return false
}

// answersLocked answers a command of a client for which it matters who the client or the server is.
func (s *server) answersLocked(p *resp.Peer, c *peer, command string, args []string) (done bool) {
	logsIn := command == "AUTH" || command == "HELLO" && len(args) > 1 // go-redis gives no other option
	switch {
	case logsIn && !slices.Contains(args, s.password):
		p.WriteError("WRONGPASS invalid username-password pair or user is disabled.")
	case command == "AUTH":
		p.WriteOK()
	case command == "INFO":
		p.WriteBulk(identity(s.primary, c.stale))
	case c.stale && writes(command):
		p.WriteError(readOnly)
	default:
		return false
	}
	return true
}

// firstPassword is the password of the server until it is rotated.
const firstPassword = "password-1"

// rotate gives the server another password. Connections that exist stay logged in.
func (s *server) rotate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	number, _ := strconv.Atoi(strings.TrimPrefix(s.password, "password-"))
	s.password = fmt.Sprint("password-", number+1)
}

// secret returns the present password.
func (s *server) secret() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.password
}

// outdate makes the connections of a process lead to a server that has become a replica.
func (s *server) outdate(link int) (outdated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.peers {
		if c.link == link {
			c.stale = true
			outdated++
		}
	}
	return outdated
}

// judged reports whether a command is about a limit or a queue, or ends one. Their order is that of their stamps.
func judged(name string) bool {
	return strings.HasPrefix(name, "rate_") || strings.HasPrefix(name, "delay_") || name == "del" || name == "unlink"
}

// record has the server execute such a command, for a peer that keeps the reply.
func (s *server) record(p *resp.Peer, client *peer, command string, args []string) {
	var reply bytes.Buffer
	q := resp.NewPeer(bufio.NewWriter(&reply))
	q.Resp3 = p.Resp3
	s.mu.Lock()
	s.peers[q], s.recorded[q] = client, -1
	s.mu.Unlock()
	s.recording.Lock()
	s.front.Dispatch(q, slices.Concat([]string{command}, args))
	s.recording.Unlock()
	q.Flush()
	s.mu.Lock()
	if number := s.recorded[q]; number >= 0 {
		switch e := &s.executed[number]; {
		case strings.HasPrefix(e.name, "delay_"):
			e.task = taskScriptOf(args[2+len(e.keys):], reply.String())
		case strings.HasPrefix(e.name, "rate_") && !strings.HasPrefix(e.name, "rate_set"):
			e.decision = &decision{now: e.clock, args: args[2+len(e.keys):], reply: replyOf(reply.String())}
		}
	}
	delete(s.peers, q)
	delete(s.recorded, q)
	s.mu.Unlock()
	p.WriteRaw(reply.String())
}

// stamp returns the present instant; s.mu is held. No two executions have the same.
func (s *server) stamp() int64 {
	s.last = max(s.last+1, int64(time.Since(s.start)))
	return s.last
}

func (s *server) enter(p *resp.Peer, number string, to address) {
	i, _ := strconv.Atoi(number)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[p] = &peer{link: i, to: to}
	p.OnDisconnect(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, p)
	})
}

// scriptNames are the names of the library's scripts by their hashes.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := make(map[string]string)
	for _, s := range scripts.All() {
		names[s.SHA()] = s.Name()
		names[s.Source()] = s.Name()
	}
	return names
})

func nameOf(command string, args []string) string {
	command = strings.ToLower(command)
	if (command == "evalsha" || command == "eval") && len(args) > 0 {
		name := scriptNames()[args[0]]
		if name == "rate_set" && args[len(args)-1] == "1" {
			return "rate_set with state"
		}
		if name != "" {
			return name
		}
	}
	return command
}

func keysOf(command string, args []string) []string {
	switch command {
	case "EVALSHA", "EVAL":
		if len(args) > 1 {
			if n, err := strconv.Atoi(args[1]); err == nil && n >= 0 && n+2 <= len(args) {
				return slices.Clone(args[2 : 2+n])
			}
		}
	case "DEL", "UNLINK":
		return slices.Clone(args)
	}
	return nil
}

// refuse begins a fault.
func (s *server) refuse(r *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, r)
}

// heal ends all refusals.
func (s *server) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = nil
}

// lose makes the server forget its data.
func (s *server) lose(at int64) {
	s.recording.Lock()
	defer s.recording.Unlock()
	s.mu.Lock()
	s.lost = append(s.lost, at)
	s.executed = append(s.executed, execution{at: s.stamp(), name: "flushall"})
	s.mu.Unlock()
	s.redis.FlushAll()
}

// forgetScripts empties the cache of scripts.
func (s *server) forgetScripts() {
	p := resp.NewPeer(bufio.NewWriter(io.Discard))
	s.redis.Server().Dispatch(p, []string{"SCRIPT", "FLUSH"})
}

// step moves the server's clock.
func (s *server) step(d time.Duration, at int64) {
	s.recording.Lock()
	defer s.recording.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d
	s.lost = append(s.lost, at)
}

// micros returns the server's clock.
func (s *server) micros() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead).UnixMicro()
}

// readers are the commands that servers accept whose writes are refused.
var readers = []string{
	"evalsha", "eval", "script", "hello", "auth", "client", "ping", "select", "time", "get", "mget", "strlen",
	"exists", "ttl", "pttl", "type", "hget", "hmget", "hexists", "hlen", "hkeys", "hgetall", "zscore", "zcard",
	"zcount", "zmscore", "zrange", "zrangebyscore", "zrank", "lindex", "llen", "lrange", "lpos", "publish",
	"spublish", "subscribe", "unsubscribe",
	"info", "command", "scan", "pubsub",
}

// frees are the writes that need no memory.
var frees = []string{
	"del", "unlink", "pexpire", "expire", "persist", "hdel", "zrem", "zremrangebyscore", "zremrangebyrank", "lrem",
	"lpop", "ltrim", "flushall",
}

func isWrite(command string) bool { return !slices.Contains(readers, command) }

func needsMemory(command string) bool { return isWrite(command) && !slices.Contains(frees, command) }

// scriptError is how the embedded server tells that a command of a script failed; see cogwheeltest.
var scriptError = regexp.MustCompile(
	`^-ERR Error compiling script \(new function\): :\d+: ([A-Z]+ .*?)( stack traceback: .*)?\r\n$`)

// plainError turns such a reply into that of a real server.
func plainError(reply []byte) []byte {
	if len(reply) == 0 || reply[0] != '-' {
		return reply
	}
	return scriptError.ReplaceAll(reply, []byte("-$1\r\n"))
}

package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 20 * time.Second
	pollInterval = 2 * time.Millisecond
	portTries    = 20
)

var errPortTaken = errors.New("redistest: the port is taken")

// Server is one redis-server process on loopback. Its methods are safe for
// concurrent use; those that take a testing.TB must be called from the test's
// own goroutine.
type Server struct {
	dir  string
	args []string
	conf string // a Sentinel's configuration, without its port
	env  []string
	port int

	mu   sync.Mutex
	proc *process // nil while killed
}

// Start starts a redis-server on a free loopback port, without persistence and
// with the DEBUG command allowed, and returns once it answers. Each of args is
// one word of its command line ("--appendonly", "yes") and overrides the
// defaults. The server ends with the test. A test without a server fails: it is
// never skipped.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startOwned(tb, args, "")
}

// startOwned launches a server that ends with the test.
func startOwned(tb testing.TB, args []string, conf string, env ...string) *Server {
	tb.Helper()
	s, err := launch(tb.TempDir(), args, conf, env...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		s.end()
		if tb.Failed() {
			tb.Logf("log of redis-server on %s:\n%s", s.Addr(), s.logTail())
		}
	})
	return s
}

// Addr returns host:port. It stays the same across Restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Dir returns the server's working directory.
func (s *Server) Dir() string { return s.dir }

// PID returns the process id, or 0 after Kill.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.pid
}

// Client returns a client of the server that is closed with the test. Each of
// opts may change the options, which otherwise are go-redis' defaults.
func (s *Server) Client(tb testing.TB, opts ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := &redis.Options{Addr: s.Addr()}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Deliver sends the bytes of calls on a connection of its own, and returns once the server has executed them.
func (s *Server) Deliver(tb testing.TB, calls []byte) {
	tb.Helper()
	s.deliver(tb, calls)
}

// DeliverAnd is Deliver, and reports whether the key exists after the calls, before the server executes anything else.
func (s *Server) DeliverAnd(tb testing.TB, calls []byte, key string) (exists bool) {
	tb.Helper()
	ask := fmt.Appendf(nil, "*2\r\n$6\r\nEXISTS\r\n$%d\r\n%s\r\n", len(key), key)
	replies := s.deliver(tb, slices.Concat([]byte("*1\r\n$5\r\nMULTI\r\n"), calls, ask, []byte("*1\r\n$4\r\nEXEC\r\n")))
	return replies[len(replies)-1] == ":1"
}

// deliver sends calls and returns the lines of their replies.
func (s *Server) deliver(tb testing.TB, calls []byte) (replies []string) {
	tb.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	const mark = "delivered"
	_, err = fmt.Fprintf(conn, "%s*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", calls, len(mark), mark)
	if err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if lines.Text() == mark {
			return replies[:len(replies)-1] // without the length of the mark
		}
		replies = append(replies, lines.Text())
	}
	tb.Fatalf("redistest: the server did not answer: %v", lines.Err())
	return nil
}

// Pause freezes the process as a stalled host would: connections stay open and
// nothing answers. It returns when the process has stopped. It panics if the
// server is not running.
func (s *Server) Pause() {
	waitStopped(s.signal(sigStop))
}

// Resume lets a paused process go on. It panics if the server is not running.
func (s *Server) Resume() { s.signal(sigContinue) }

// Kill ends the process at once, as a crash would, and returns when it is gone.
// Killing a server that is not running does nothing.
func (s *Server) Kill() { s.end() }

// Restart kills the process if it runs and starts it again on the same port,
// in the same directory and with the same arguments.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.end()
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) signal(sig syscall.Signal) (pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		panic("redistest: signal to a server that is not running")
	}
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		panic(fmt.Sprintf("redistest: signal to redis-server %d: %v", s.proc.pid, err))
	}
	return s.proc.pid
}

// end kills also a process that is stopped: SIGKILL needs no SIGCONT.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	_ = s.proc.cmd.Process.Kill()
	<-s.proc.exited
	s.proc = nil
}

// launch starts a server. It tries another port if another process takes the chosen one first.
func launch(dir string, args []string, conf string, env ...string) (*Server, error) {
	for range portTries {
		s := &Server{dir: dir, args: args, conf: conf, env: env, port: freePort()}
		err := s.start()
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("redistest: no free port after %d tries", portTries)
}

// freePort picks a port that no process listens on. The port and the cluster bus, 10000 above, stay below the
// range of outgoing connections, so that a killed server finds its ports free when it restarts.
func freePort() int {
	for {
		first, _ := ownPorts()
		port := first + int(lastPort.Add(1)%portsEach)
		if l, err := listen(port); err == nil {
			_ = l.Close()
			return port
		}
	}
}

// The ports of servers, 12000 to 21999, in blocks.
const (
	portBlocks = 20
	portsEach  = 10000 / portBlocks
)

var lastPort atomic.Uint64

// ownPorts returns the first port of a block that no other process of tests has, and goes through the block in order:
// a client of a server that was killed may still call its port. The listener claims the block for as long as this
// process runs.
var ownPorts = sync.OnceValues(func() (first int, claim net.Listener) {
	block := 0
	for _, block = range rand.Perm(portBlocks) {
		var err error
		if claim, err = listen(11000 + block); err == nil {
			break
		}
	}
	return 12000 + block*portsEach, claim
})

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
}

// start runs the process and waits until it serves.
func (s *Server) start() error {
	p, err := s.spawn()
	if err != nil {
		return err
	}
	if err := s.awaitReady(p); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
		return err
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return nil
}

// process is one run of the server. exited is closed when it has ended.
type process struct {
	cmd    *exec.Cmd
	pid    int
	exited chan struct{}
}

// spawn starts the process from a thread that waits for it until it ends. The
// kernel ties the child's death signal to the thread that forked it, so that
// thread must not go back to the scheduler while the child lives.
func (s *Server) spawn() (*process, error) {
	server, err := findBinary()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(s.logPath())
	if err != nil {
		return nil, err
	}
	line, err := s.commandLine(server)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(server.path, line...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr()

	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, after the child.
		runtime.LockOSThread()
		defer close(p.exited)
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // a killed process reports its signal
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("redistest: start redis-server: %w", err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

func (s *Server) commandLine(server binary) ([]string, error) {
	if s.conf != "" {
		return s.sentinelLine()
	}
	line := []string{
		"--port", strconv.Itoa(s.port),
		"--bind", "127.0.0.1",
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
	}
	if server.atLeast(7, 0) { // before, DEBUG is always allowed, and the option unknown
		line = append(line, "--enable-debug-command", "local")
	}
	return append(line, s.args...), nil
}

// awaitReady waits until this process, rather than another one on the port, logs that it accepts connections,
// and then until it answers a PING.
func (s *Server) awaitReady(p *process) error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		if s.logged("Ready to accept connections", "Sentinel ID is") && s.answers() {
			return nil
		}
		select {
		case <-p.exited:
			if s.logged("Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("redistest: redis-server ended at start:\n%s", s.logTail())
		case <-deadline.C:
			return fmt.Errorf("redistest: redis-server not ready after %v:\n%s", startTimeout, s.logTail())
		case <-poll.C:
		}
	}
}

// answers reports whether a PING gets a reply. A refusal (-NOAUTH) is one too.
func (s *Server) answers() bool {
	conn, err := net.DialTimeout("tcp", s.Addr(), time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && !strings.HasPrefix(line, "-LOADING")
}

func (s *Server) logPath() string {
	return filepath.Join(s.dir, "redis-"+strconv.Itoa(s.port)+".log")
}

// logged reports whether the current run has written one of the phrases.
func (s *Server) logged(phrases ...string) bool {
	log, _ := os.ReadFile(s.logPath())
	for _, phrase := range phrases {
		if bytes.Contains(log, []byte(phrase)) {
			return true
		}
	}
	return false
}

// logTail returns the end of the current run's log.
func (s *Server) logTail() string {
	const most = 4096
	log, _ := os.ReadFile(s.logPath())
	return string(log[max(0, len(log)-most):])
}

package cogwheeltest

import (
	"slices"

	"github.com/redis/go-redis/v9"
)

// Always is the number of calls of a fault that lasts until ClearFaults.
const Always = -1

// Error replies of servers in trouble, for Refuse. Any other text that begins with an error code is valid too.
const (
	OutOfMemory  = "OOM command not allowed when used memory > 'maxmemory'."
	ReadOnly     = "READONLY You can't write against a read only replica."
	Loading      = "LOADING Redis is loading the dataset in memory"
	NoPermission = "NOPERM this user has no permissions to run the 'evalsha' command"
)

// fault is the treatment of the next calls.
type fault struct {
	left  int // calls; negative: no end
	names []string
	reply string // instead of the execution; empty: the call is executed, and its reply is lost
}

type faults []*fault

// take returns the fault for a command, or nil, and counts it.
func (fs *faults) take(r *request) *fault {
	i := slices.IndexFunc(*fs, func(f *fault) bool { return r.isCall(f.names) })
	if i < 0 {
		return nil
	}
	f := (*fs)[i]
	if f.left--; f.left == 0 {
		*fs = slices.Delete(*fs, i, i+1)
	}
	return f
}

// DropReplies makes clients miss the replies of the next n calls, 1 or more, or with Always of all calls: the server
// executes each call, and its connection breaks before the reply. Most calls of the library are idempotent and are sent
// again. If names are given, only calls for locks, limits, semaphores or queues of these names count.
//
// Each command that the server executes counts as a call, also each command of a pipeline and each repetition.
// Commands that set up a connection do not count. When the connection breaks in the middle of a pipeline, the rest of
// the pipeline is not executed and does not count.
func (s *Server) DropReplies(n int, names ...string) { s.addFault(&fault{left: n, names: names}) }

// Refuse makes the server answer the next n calls, or with Always all calls, with an error such as OutOfMemory,
// without executing them. reply must not be empty. n and names mean the same as for DropReplies. If a call matches
// several faults, the oldest applies.
func (s *Server) Refuse(reply string, n int, names ...string) {
	s.tb.Helper()
	if reply == "" {
		s.tb.Error("cogwheeltest: Refuse without an error to answer")
		return
	}
	s.addFault(&fault{left: n, names: names, reply: reply})
}

func (s *Server) addFault(f *fault) {
	s.tb.Helper()
	if f.left == 0 || f.left < Always {
		s.tb.Errorf("cogwheeltest: a fault for %d calls", f.left)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// PendingFaults returns the number of faults of DropReplies and Refuse that have calls left, including those
// for Always. 0 shows that the test has met every fault that it asked for.
func (s *Server) PendingFaults() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.faults)
}

// ClearFaults ends the faults of DropReplies and Refuse.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Hang makes the server stop answering, as a frozen host does: connections stay open, new ones can be made, and
// calls wait until Resume or until their timeouts. Its clock, and with it every lease, continues.
func (s *Server) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging = true
}

// Resume ends Hang. The server then executes the calls that it received meanwhile, whether or not the clients still
// wait for the replies.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumeLocked()
}

func (s *Server) resumeLocked() {
	s.hanging = false
	for _, c := range s.sessions {
		c.resumeLocked()
	}
}

// Stop breaks all connections and refuses new ones, until Restart. The data stays, and the clock continues: a
// lease that ends meanwhile has ended.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.disconnectLocked(func(*session) bool { return true })
}

// Restart makes a stopped server accept connections again, with its data. To simulate a server that has lost its data,
// call Flush before.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = false
}

// Disconnect breaks all connections once. Clients connect again at their next calls.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disconnectLocked(func(*session) bool { return true })
}

func (s *Server) disconnectLocked(chosen func(*session) bool) {
	for _, c := range s.sessions {
		if chosen(c) {
			c.closeLocked()
		}
	}
}

// Isolate cuts off a client of this server, as if its process had crashed or lost its network: its connections
// break, and it gets no new ones until Rejoin. This includes the connections that the library makes from the options of
// the client. Its locks and permits stay in Redis until their leases end. rdb must be a result of Client or NewClient.
func (s *Server) Isolate(rdb *redis.Client) { s.isolate(rdb, true) }

// Rejoin ends Isolate.
func (s *Server) Rejoin(rdb *redis.Client) { s.isolate(rdb, false) }

func (s *Server) isolate(rdb *redis.Client, isolated bool) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[rdb]
	if g == nil {
		s.tb.Error("cogwheeltest: the client is not one of Client or NewClient")
		return
	}
	g.isolated = isolated
	if isolated {
		s.disconnectLocked(func(c *session) bool { return c.group == g })
	}
}

// heal ends all faults, so that clients can be closed.
func (s *Server) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.stopped = nil, false
	for _, g := range s.groups {
		g.isolated = false
	}
	s.resumeLocked()
}

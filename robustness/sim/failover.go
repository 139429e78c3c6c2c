package sim

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	resp "github.com/alicebob/miniredis/v2/server"
)

// deposed is a primary that was replaced while its clients still reached it. It lives on with the data of that instant
// and takes their writes. Nothing that it executes is recorded.
type deposed struct {
	redis   *miniredis.Miniredis
	front   *resp.Server // of redis, also when that is closed
	addr    address
	mu      sync.Mutex
	demoted bool // it is a replica of the other
}

// depose makes this server the successor of the present primary, which becomes another server with the same data.
// Clients that had dialed the primary by its own address stay with the old one.
func (s *server) depose() error {
	now := time.UnixMicro(s.micros())
	s.redis.SetTime(now)
	old, err := copied(s.redis, now)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old, s.primary = &deposed{redis: old, front: old.Server(), addr: s.primary}, promotedAddr
	return nil
}

// demote makes the deposed primary a replica.
func (s *server) demote() {
	s.old.mu.Lock()
	defer s.old.mu.Unlock()
	s.old.demoted = true
}

// deposedLocked returns the deposed primary if a client is connected to it, else nil.
func (s *server) deposedLocked(c *peer) *deposed {
	if s.old != nil && c.to == s.old.addr {
		return s.old
	}
	return nil
}

// close ends the servers.
func (s *server) close() {
	s.redis.Close()
	if s.old != nil {
		s.old.redis.Close()
	}
}

// answer executes a command of a client.
func (d *deposed) answer(p *resp.Peer, command string, args []string) {
	d.mu.Lock()
	demoted := d.demoted
	d.mu.Unlock()
	switch {
	case demoted && writes(command):
		p.WriteError(readOnly)
		return
	case command == "INFO":
		p.WriteBulk(identity(d.addr, demoted))
		return
	}
	d.redis.SetTime(time.Now())
	d.front.Dispatch(p, append([]string{command}, args...))
}

// identity returns what a server says about itself.
func identity(addr address, replica bool) string {
	role := "master"
	if replica {
		role = "slave"
	}
	id := fmt.Sprintf("run_id:%040x", string(addr))
	lines := []string{"# Server", "redis_version:8.4.0", id, "# Replication", "role:" + role}
	return strings.Join(lines, "\r\n") + "\r\n"
}

// readOnly is the answer of a replica to writes.
const readOnly = "READONLY You can't write against a read only replica."

// writes reports whether a replica refuses a command of a client.
func writes(command string) bool {
	command = strings.ToLower(command)
	return command == "evalsha" || command == "eval" || isWrite(command)
}

// copied returns a server with the same data.
func copied(from *miniredis.Miniredis, now time.Time) (*miniredis.Miniredis, error) {
	to, err := embedded(now)
	if err != nil {
		return nil, err
	}
	for _, key := range from.Keys() {
		if err := copyKey(from, to, key); err != nil {
			return nil, err
		}
		if ttl := from.TTL(key); ttl > 0 {
			to.SetTTL(key, ttl)
		}
	}
	return to, nil
}

func copyKey(from, to *miniredis.Miniredis, key string) error {
	switch from.Type(key) {
	case "string":
		value, err := from.Get(key)
		if err != nil {
			return err
		}
		return to.Set(key, value)
	case "hash":
		fields, err := from.HKeys(key)
		for _, field := range fields {
			to.HSet(key, field, from.HGet(key, field))
		}
		return err
	case "list":
		values, err := from.List(key)
		if err != nil {
			return err
		}
		_, err = to.Push(key, values...)
		return err
	case "set":
		members, err := from.Members(key)
		if err != nil {
			return err
		}
		_, err = to.SetAdd(key, members...)
		return err
	default:
		scores, err := from.SortedSet(key)
		for member, score := range scores {
			if _, err := to.ZAdd(key, score, member); err != nil {
				return err
			}
		}
		return err
	}
}

// sentinel is a Sentinel: it says which server is the primary.
type sentinel struct {
	redis *miniredis.Miniredis // for its channels
	front *resp.Server         // of redis, also when that is closed

	mu      sync.Mutex
	primary address
	tell    []func() // the clients that do not subscribe
}

// primaryName is the name of the primary, as the Sentinel knows it.
const primaryName = "primary"

func newSentinel() (*sentinel, error) {
	m, err := embedded(time.Now())
	if err != nil {
		return nil, err
	}
	s := &sentinel{redis: m, front: m.Server(), primary: primaryAddr}
	s.front.SetPreHook(s.before)
	return s, nil
}

func (s *sentinel) before(p *resp.Peer, command string, args ...string) (done bool) {
	if command != "SENTINEL" {
		return false
	}
	host, port, _ := strings.Cut(string(s.named()), ":")
	switch strings.ToLower(args[0]) {
	case "get-master-addr-by-name":
		p.WriteStrings([]string{host, port})
	case "replicas": // there is one, or go-redis looks for another Sentinel
		host, port, _ = strings.Cut(string(replicaAddr), ":")
		p.WriteLen(1)
		p.WriteMapLen(3)
		for _, text := range []string{"ip", host, "port", port, "flags", "slave"} {
			p.WriteBulk(text)
		}
	default:
		p.WriteLen(0)
	}
	return true
}

// named returns the primary.
func (s *sentinel) named() address {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.primary
}

// onSwitch has f called when there is another primary.
func (s *sentinel) onSwitch(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = append(s.tell, f)
}

// promote names another primary, and publishes that.
func (s *sentinel) promote(to address) {
	s.mu.Lock()
	from := s.primary
	s.primary = to
	for _, f := range s.tell {
		go f()
	}
	s.mu.Unlock()
	addrs := strings.ReplaceAll(string(from+" "+to), ":", " ")
	s.redis.Publish("+switch-master", primaryName+" "+addrs)
}

// serve connects a process to a server or to the Sentinel.
func (w *world) serve(c net.Conn, of *conn) {
	if of.to == sentinelAddr {
		w.sentinel.front.ServeConn(c)
		return
	}
	w.server.serve(c, of)
}

// failover replaces the primary while it lives on: the Sentinels and the replica are cut off from it, but no client
// is. When they are connected again, it becomes a replica and closes the connections of its clients.
func (w *world) failover(f Fault, met func()) {
	if err := w.server.depose(); err != nil {
		w.faultf("no trouble", "server", "%v", err)
		return
	}
	w.sentinel.promote(promotedAddr)
	met()
	w.watchHolders(f)
	w.server.demote()
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	for _, l := range w.net.links {
		for c := range l.conns {
			if c.open && c.to == primaryAddr {
				c.resetLocked()
			}
		}
	}
}

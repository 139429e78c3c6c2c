package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// decision is a script that decides requests for permits, as the server executed it: its arguments and its reply.
type decision struct {
	now   int64 // microseconds of the server's clock
	args  []string
	reply []int64 // nil for an error
}

func (d *decision) arg(i int) int64 {
	n, _ := strconv.ParseInt(d.args[i-1], 10, 64)
	return n
}

// replyOf returns the integers of a reply, or nil for any other.
func replyOf(text string) (reply []int64) {
	for line := range strings.SplitSeq(text, "\r\n") {
		if strings.HasPrefix(line, ":") {
			n, _ := strconv.ParseInt(line[1:], 10, 64)
			reply = append(reply, n)
		}
	}
	return reply
}

// options returns the place of the first argument after the runs of equal requests, where that says how the first of
// them are decided, or 0 for a log.
func (e *execution) options() int {
	d := e.decision
	switch e.name {
	case "rate_window":
		return 5 + 2*int(d.arg(4))
	case "rate_sliding":
		return 4 + 2*int(d.arg(3))
	case "rate_gcra":
		return 6 + 3*int(d.arg(5))
	}
	return 0
}

// granted returns how many requests of each run the script granted.
func (e *execution) granted() []int64 {
	switch d := e.decision; e.name {
	case "rate_window":
		return d.reply[3 : 3+d.arg(4)]
	case "rate_sliding":
		return d.reply[4 : 4+d.arg(3)]
	case "rate_gcra":
		granted := slices.Clone(d.reply[4 : 4+d.arg(5)])
		for run := range granted {
			granted[run] = max(0, granted[run]) // -1 is after the deadline of a waiter
		}
		return granted
	}
	return nil
}

// place is what a bucket charged for one request: a stretch of the server's time, in nanoseconds.
type place struct {
	of       string
	from, to int64
}

// places returns what a bucket charged, in the order of the requests. Only those that can be given back have an of.
func (e *execution) places() (places []place) {
	d, at := e.decision, e.options()
	price := func(run int) int64 { return d.arg(6+3*run)*1000 + d.arg(7+3*run)*1000/d.arg(1) }
	if len(d.args) < at || d.args[at-1] == "" {
		for run, n := range e.granted() {
			for range n {
				places = append(places, place{"", d.now*1000 - price(run), d.now * 1000})
			}
		}
		return places
	}
	rest := d.reply[4+d.arg(5):]
	period, returned, owed := rest[0], rest[1], rest[2]
	rest = rest[3:]
	zone := d.now + d.arg(2)
	for run, n := range e.granted() {
		for n > 0 {
			to, count := rest[0]*1000+rest[1]*1000/d.arg(1), rest[2]
			of := fmt.Sprint([]int64{period, returned})
			if rest[0] > zone || rest[0] == zone && rest[1] > d.arg(3) {
				of = fmt.Sprint([]int64{period, returned - owed})
			}
			for i := range count {
				end := to - (count-1-i)*price(run)
				places = append(places, place{of, end - price(run), end})
			}
			rest, n = rest[3:], n-count
		}
	}
	return places
}

// grants reports whether the script granted anything.
func (e *execution) grants() bool {
	d := e.decision
	if d == nil || d.reply == nil {
		return false
	}
	some := func(n int64) bool { return n > 0 }
	return slices.ContainsFunc(e.granted(), some) || e.options() == 0 && len(d.entries()) > 0
}

// charged returns what tells the charge of the script from others, if it can be given back.
func (e *execution) charged() string {
	d, at := e.decision, e.options()
	last := len(d.reply)
	switch {
	case len(d.args) < at:
	case e.name == "rate_window" && d.arg(at) == 2:
		return fmt.Sprint(d.reply[last-1:])
	case e.name == "rate_sliding" && d.arg(at) == 2:
		return fmt.Sprint(d.reply[last-2:])
	}
	return ""
}

// part is a part of a charge that a script gives back: permits, or for a bucket nanoseconds, before an instant.
type part struct {
	of  string
	n   int64
	end int64
}

// in returns how much of the part is in a place.
func (p part) in(c place) int64 {
	if c.of != p.of {
		return 0
	}
	return max(0, min(p.end, c.to)-max(p.end-p.n, c.from))
}

// settled returns what the script was told to give back, and the debt that it booked: permits, or for a bucket
// microseconds.
func (e *execution) settled() (back []part, debt int64) {
	d, at := e.decision, e.options()
	if at == 0 {
		for i := range int(d.arg(5)) {
			member := d.args[5+2*i]
			back = append(back, part{of: idOf(member), n: sizeOf(member) - d.arg(7+2*i)})
		}
		if entries := d.entries(); d.arg(2) == -4 && len(entries) > 0 {
			debt = entries[0].n
		}
		return back, debt
	}
	if len(d.args) <= at {
		return nil, 0
	}
	if e.name == "rate_gcra" {
		at++ // whether the process has charged permits
	}
	parts := int(d.arg(at + 1))
	at += 2
	for range parts {
		switch e.name {
		case "rate_window":
			back = append(back, part{of: fmt.Sprint([]int64{d.arg(at)}), n: d.arg(at + 1)})
			at += 2
		case "rate_sliding":
			back = append(back, part{of: fmt.Sprint([]int64{d.arg(at), d.arg(at + 1)}), n: d.arg(at + 2)})
			at += 3
		default:
			back = append(back, part{
				of:  fmt.Sprint([]int64{d.arg(at), d.arg(at + 1)}),
				n:   d.arg(at+4)*1000 + d.arg(at+5)*1000/d.arg(1),
				end: d.arg(at+2)*1000 + d.arg(at+3)*1000/d.arg(1),
			})
			at += 7
		}
	}
	if e.name == "rate_gcra" && d.args[e.options()-1] != "" {
		at += 2 * int(d.arg(5))
	}
	if len(d.args) >= at { // the reply has it in the place of what was given back
		switch debt = d.reply[3]; e.name {
		case "rate_window":
			debt = d.reply[3+len(e.granted())]
		case "rate_sliding":
			debt = d.reply[4+len(e.granted())]
		}
	}
	return back, debt
}

// givenBack returns what the script gave back: a window takes nothing back when the next one was opened.
func (e *execution) givenBack() (back []part) {
	if e.decision == nil || e.decision.reply == nil {
		return nil
	}
	back, _ = e.settled()
	for i := range back {
		if e.name == "rate_window" {
			back[i].n = e.decision.reply[3+len(e.granted())]
		}
	}
	return back
}

// charges returns what the script granted as requests, each of which was granted at once. A debt is as many requests
// for one permit.
func (e *execution) charges() (charged []*check.Ask) {
	d := e.decision
	if d == nil || d.reply == nil {
		return nil
	}
	charge := func(n, count, permits int64, per time.Duration) {
		for range count {
			rate := oracle.Limit{Rate: permits, Per: per, Burst: permits}
			charged = append(charged, &check.Ask{
				N: n, Limit: rate, Least: rate, By: e.link, Called: e.at, Return: e.at, Granted: true,
			})
		}
	}
	_, debt := e.settled()
	switch granted := e.granted(); e.name {
	case "rate_window":
		charge(1, debt, d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		for run := range granted {
			charge(d.arg(5+2*run), granted[run], d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		}
	case "rate_sliding":
		charge(1, debt, d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		for run := range granted {
			charge(d.arg(4+2*run), granted[run], d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		}
	case "rate_gcra": // a price is a permit of a limit of one
		if debt > 0 {
			charge(1, 1, 1, time.Duration(debt+1)*time.Microsecond)
		}
		for run := range granted {
			charge(1, granted[run], 1, time.Duration(d.arg(6+3*run))*time.Microsecond)
		}
	default:
		rate, per := d.reply[0], time.Duration(d.reply[1])*time.Millisecond
		charge(1, debt, rate, per)
		for _, entry := range d.entries() {
			if debt == 0 {
				charge(entry.n, 1, rate, per)
			}
		}
	}
	return charged
}

// logEntry is an entry of a log.
type logEntry struct {
	member string
	n, at  int64
}

// idOf returns a member without the number of its permits, and sizeOf that number.
func idOf(member string) string {
	end := len(member) - 4
	return member[:4] + member[min(8, end):end] // between the two is the number again
}

func sizeOf(member string) int64 {
	return int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:])))
}

// entries returns what was entered.
func (d *decision) entries() (entries []logEntry) {
	for i, member := range d.args[5+2*d.arg(5):] {
		if wait := d.reply[5+i]; wait >= 0 {
			n := sizeOf(member)
			if d.arg(2) <= -3 { // it may be a part
				n = d.reply[6]
			}
			entries = append(entries, logEntry{idOf(member), n, d.now + wait})
		}
	}
	return entries
}

package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
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

// grants reports whether the script granted anything.
func (e *execution) grants() bool {
	d := e.decision
	if d == nil || d.reply == nil {
		return false
	}
	some := func(n int64) bool { return n > 0 }
	switch e.name {
	case "rate_window":
		return slices.ContainsFunc(d.reply[3:], some)
	case "rate_gcra", "rate_sliding":
		return slices.ContainsFunc(d.reply[4:], some)
	default:
		return len(d.entries()) > 0
	}
}

// charges returns what the script granted as requests, each of which was granted at once.
func (e *execution) charges() (charged []*check.Ask) {
	d := e.decision
	if !e.grants() {
		return nil
	}
	charge := func(n, count, permits int64, per time.Duration) {
		for range count {
			rate := check.Rate{Permits: permits, Per: per, Burst: permits}
			charged = append(charged, &check.Ask{
				N: n, Rate: rate, Least: rate, By: e.link, Called: e.at, Return: e.at, Granted: true,
			})
		}
	}
	switch e.name {
	case "rate_window":
		for run := range int(d.arg(4)) {
			charge(d.arg(5+2*run), d.reply[3+run], d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		}
	case "rate_sliding":
		for run := range int(d.arg(3)) {
			charge(d.arg(4+2*run), d.reply[4+run], d.arg(1), time.Duration(d.arg(2))*time.Millisecond)
		}
	case "rate_gcra": // a price is a permit of a limit of one
		for run := range int(d.arg(5)) {
			charge(1, d.reply[4+run], 1, time.Duration(d.arg(6+3*run))*time.Microsecond)
		}
	default:
		for _, entry := range d.entries() {
			charge(entry.n, 1, d.reply[0], time.Duration(d.reply[1])*time.Millisecond)
		}
	}
	return charged
}

// exact is a definition of a limit, which follows what the server executed.
type exact interface {
	// follow takes what a script granted, and says what it should not have granted.
	follow(d *decision) string
	reset()
}

// judgeExactly judges the scripts about a limit in the order in which the server executed them, each under the
// limit that its caller sent. So it judges requests of one key under different limits.
func judgeExactly(kind string, about []execution, lost []int64) (faults []check.Fault) {
	alg := map[string]exact{
		bucketKind: &exactBucket{}, windowKind: &exactWindows{}, slidingKind: &exactSliding{}, storedKind: &exactLog{},
	}[kind]
	for _, e := range about {
		for len(lost) > 0 && lost[0] <= e.at {
			alg.reset()
			lost = lost[1:]
		}
		switch {
		case slices.Contains([]string{"del", "unlink", "rate_set"}, e.name):
			alg.reset()
		case e.decision == nil || e.decision.reply == nil:
		default:
			if wrong := alg.follow(e.decision); wrong != "" {
				detail := fmt.Sprintf("at %v, process %d: %s", time.Duration(e.at), e.link, wrong)
				faults = append(faults, check.Fault{Promise: "a script grants what its limit allows", Detail: detail})
			}
		}
	}
	return faults
}

// exactBucket is the generic cell rate algorithm. Times are in microseconds.
type exactBucket struct{ tat float64 }

func (b *exactBucket) reset() { b.tat = 0 }

func (b *exactBucket) follow(d *decision) string {
	const rounding = 20
	den, runs, now := float64(d.arg(1)), int(d.arg(5)), float64(d.now)
	most := now + float64(d.arg(2)) + float64(d.arg(3))/den
	b.tat = max(b.tat, now)
	if d.reply[3] == 1 { // a charge was taken back
		back := 5 + 3*runs + 3
		b.tat = max(now, b.tat-float64(d.arg(back))-float64(d.arg(back+1))/den)
	}
	for run := range runs {
		if n := d.reply[4+run]; n > 0 {
			b.tat += float64(n) * (float64(d.arg(6+3*run)) + float64(d.arg(7+3*run))/den)
			if b.tat > most+rounding {
				return fmt.Sprintf("granted %d requests, %.0f us too early", n, b.tat-most)
			}
		}
	}
	return ""
}

// exactWindows are fixed windows. Times are in milliseconds.
type exactWindows struct{ begins, ends, used int64 }

func (w *exactWindows) reset() { *w = exactWindows{} }

func (w *exactWindows) follow(d *decision) string {
	const rounding = 2
	now, limit, length, ahead := d.now/1000, d.arg(1), d.arg(2), d.arg(3)
	// The server keeps the rest of a window in whole milliseconds, so each can be a little shorter than it should.
	if drift := now + d.reply[2] - w.ends; -rounding <= drift && drift <= rounding {
		w.begins, w.ends = w.begins+drift, w.ends+drift
	}
	if d.reply[0] == 0 && w.ends-now <= rounding { // it has ended a little sooner
		w.ends = min(w.ends, now)
	}
	for run := range int(d.arg(4)) {
		n := d.arg(5 + 2*run)
		for range d.reply[3+run] {
			switch {
			case now >= w.ends, w.used+n > limit && now+ahead+rounding >= w.ends:
				begins := max(now, w.ends)
				*w = exactWindows{begins: begins, ends: begins + length}
			case w.used+n > limit:
				return fmt.Sprintf("granted %d beyond the %d of %d that are used, %d ms before the window ends",
					n, w.used, limit, w.ends-now)
			case now+ahead+rounding < w.begins:
				return fmt.Sprintf("granted %d of a window that begins in %d ms", n, w.begins-now)
			}
			if w.used += n; w.used > limit {
				return fmt.Sprintf("granted %d of %d", w.used, limit)
			}
			w.ends = max(w.ends, w.begins+length)
		}
	}
	return ""
}

// exactSliding is a sliding window by the server's clock, which shows whole milliseconds.
type exactSliding struct{ check.SlidingWindow }

func (w *exactSliding) reset() { w.Reset() }

func (w *exactSliding) follow(d *decision) string {
	now := d.now / 1000 * int64(time.Millisecond)
	rate := check.Rate{Permits: d.arg(1), Per: time.Duration(d.arg(2)) * time.Millisecond}
	for run := range int(d.arg(3)) {
		n := d.arg(4 + 2*run)
		for range d.reply[4+run] {
			if free := w.Free(now, n, rate); free > now {
				return fmt.Sprintf("granted %d of %d, %v too early", n, rate.Permits, time.Duration(free-now))
			}
			w.Grant(now, n, rate)
		}
	}
	return ""
}

// exactLog counts the entries of the last period. Times are in microseconds.
type exactLog struct{ entries map[string]logEntry }

type logEntry struct {
	member string
	n, at  int64
}

func (l *exactLog) reset() { l.entries = nil }

// entries returns what was entered.
func (d *decision) entries() (entries []logEntry) {
	for i, member := range d.args[5+d.arg(5):] {
		if wait := d.reply[5+i]; wait >= 0 {
			size := member[len(member)-4:]
			n := int64(size[0]) | int64(size[1])<<8 | int64(size[2])<<16 | int64(size[3])<<24
			entries = append(entries, logEntry{member, n, d.now + wait})
		}
	}
	return entries
}

func (l *exactLog) follow(d *decision) string {
	const rounding = 2000
	rate, period := d.reply[0], d.reply[1]*1000
	for _, member := range d.args[5 : 5+d.arg(5)] {
		delete(l.entries, member)
	}
	if l.entries == nil {
		l.entries = make(map[string]logEntry)
	}
	for _, entry := range d.entries() {
		if _, again := l.entries[entry.member]; again {
			continue
		}
		used := entry.n
		for _, e := range l.entries {
			if e.at > entry.at-period+rounding && e.at <= entry.at {
				used += e.n
			}
		}
		if l.entries[entry.member] = entry; used > rate {
			return fmt.Sprintf("granted %d of %d in a period", used, rate)
		}
	}
	return ""
}

// charge is what a script charged: permits, or for a bucket the nanoseconds in which they come back.
type charge struct {
	at, left int64
	until    int64 // of a bucket: when all of it is back
	price    int64 // of a bucket
	most     int64 // of a bucket: the nanoseconds that its state may be ahead; of windows: their permits
}

// of reports whether the charge may be of a request: whether it was made under the same limit.
func (c *charge) of(kind string, r check.Rate) bool {
	switch kind {
	case windowKind, slidingKind:
		return c.most == r.Permits
	case bucketKind:
		whole := int64(r.Per) / r.Permits
		permits := (c.price + whole/2) / whole
		ahead := c.most - r.Burst*int64(r.Per)/r.Permits
		fraction := time.Duration(c.price - permits*int64(r.Per)/r.Permits).Abs()
		return permits > 0 && fraction < 2*time.Microsecond && ahead > -2000 && ahead < int64(time.Second)
	default:
		return true
	}
}

// chargesOf returns what the scripts of a process charged, in order. A permit may be used from at on.
func chargesOf(kind string, about []execution, link int) (charges []charge) {
	for _, e := range about {
		d := e.decision
		if e.link != link || !e.grants() {
			continue
		}
		begins, used := int64(0), int64(0)
		if kind == windowKind {
			begins, used = d.reply[1], d.reply[0]
		}
		price := func(run int) int64 {
			return d.arg(6+3*run)*1000 + d.arg(7+3*run)*1000/d.arg(1)
		}
		tat := int64(0)
		if kind == bucketKind {
			tat = (d.reply[1]-d.now)*1000 + e.at
			for run := range int(d.arg(5)) {
				tat -= d.reply[4+run] * price(run)
			}
		}
		add := func(c charge) { charges = append(charges, c) }
		switch kind {
		case windowKind:
			for run := range int(d.arg(4)) {
				for range d.reply[3+run] {
					if n := d.arg(5 + 2*run); used+n > d.arg(1) {
						begins, used = d.reply[2], 0
					}
					used += d.arg(5 + 2*run)
					add(charge{at: e.at + begins*int64(time.Millisecond), left: d.arg(5 + 2*run), most: d.arg(1)})
				}
			}
		case slidingKind:
			for run := range int(d.arg(3)) {
				for range d.reply[4+run] {
					add(charge{at: e.at, left: d.arg(4 + 2*run), most: d.arg(1)})
				}
			}
		case bucketKind:
			for run := range int(d.arg(5)) {
				for range d.reply[4+run] {
					tat += price(run)
					add(charge{at: e.at, left: price(run), until: tat, price: price(run), most: d.arg(2) * 1000})
				}
			}
		default:
			for _, entry := range d.entries() {
				add(charge{at: e.at + (entry.at-d.now)*1000, left: entry.n})
			}
		}
	}
	slices.SortStableFunc(charges, func(a, b charge) int { return cmp.Compare(a.at, b.at) })
	return charges
}

// judgeCharges finds requests that a process granted although its scripts had not charged permits for them. A charge
// may pay for a request if the process kept its permits until the call, and it was made before the return. Which
// request it paid for is not known: the judge looks for a way in which the charges pay for all.
func judgeCharges(kind string, asks []*check.Ask, charges []charge, kept, rounding int64) (faults []check.Fault) {
	m := matching{paid: make([]map[int]int64, len(charges))}
	asks = slices.Clone(asks)
	slices.SortFunc(asks, func(a, b *check.Ask) int { return cmp.Compare(a.Return, b.Return) })
	for i := range charges {
		m.left, m.paid[i] = append(m.left, charges[i].left), make(map[int]int64)
	}
	need := func(a *check.Ask) int64 {
		if kind == bucketKind {
			return (a.N*int64(a.Rate.Per) - 1000*a.N) / a.Rate.Permits
		}
		return a.N
	}
	for _, a := range asks {
		var may []int
		for i, c := range charges {
			from := c.at
			if kind == bucketKind { // a part of a charge may be used before the rest
				part := c.until - c.price + min(c.price, need(a))
				from = max(from, part-a.Rate.Burst*int64(a.Rate.Per)/a.Rate.Permits)
			}
			since := a.Called - kept
			if kind == windowKind || kind == slidingKind { // each use of what is kept lets the rest be kept for longer
				since -= int64(a.Rate.Per)
			}
			if c.of(kind, a.Rate) && c.at >= since && from <= a.Return+rounding {
				may = append(may, i)
			}
		}
		m.may = append(m.may, may)
	}
	for k, a := range asks {
		for missing := need(a); missing > 0; {
			got := m.pay(k, missing, make(map[int]bool))
			if missing -= got; got == 0 {
				faults = append(faults, check.Fault{Promise: "what a process grants is charged", Detail: fmt.Sprintf(
					"request %d for %d of %d per %v was granted at %v, of which %d were not charged to the limit then",
					a.ID, a.N, a.Rate.Permits, a.Rate.Per, time.Duration(a.Return), missing)})
				break
			}
		}
	}
	return faults
}

// matching assigns charges to requests. If the charges of a request are taken, it moves other requests to other
// charges, as the search for a maximum flow does (Ford and Fulkerson).
type matching struct {
	may  [][]int         // the charges that may pay for each request
	left []int64         // what is left of each charge
	paid []map[int]int64 // what each charge paid for each request
}

// pay assigns up to want to a request, and returns how much it found. seen are the charges that were tried.
func (m *matching) pay(request int, want int64, seen map[int]bool) (got int64) {
	for _, c := range m.may[request] {
		if seen[c] {
			continue
		}
		seen[c] = true
		n := min(want-got, m.left[c])
		m.left[c] -= n
		for other, theirs := range m.paid[c] {
			if missing := want - got - n; missing > 0 && theirs > 0 && other != request {
				freed := m.pay(other, min(theirs, missing), seen)
				m.paid[c][other] -= freed
				n += freed
			}
		}
		m.paid[c][request] += n
		if got += n; got == want {
			break
		}
	}
	return got
}

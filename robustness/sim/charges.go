package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// charge is what a script charged: permits, or for a bucket the nanoseconds in which they come back.
type charge struct {
	at, left int64
	until    int64 // of a bucket: when all of it is back
	price    int64 // of a bucket
	place    place // of a bucket
	id       string
	most     int64 // of a bucket: the nanoseconds that its state may be ahead; of windows: their permits
}

// of reports whether the charge may be of a request: whether it was made under the same limit.
func (c *charge) of(kind string, r oracle.Limit) bool {
	switch kind {
	case windowKind, slidingKind:
		return c.most == r.Rate
	case bucketKind:
		whole := int64(r.Per) / r.Rate
		permits := (c.price + whole/2) / whole
		ahead := c.most - r.Burst*int64(r.Per)/r.Rate
		fraction := time.Duration(c.price - permits*int64(r.Per)/r.Rate).Abs()
		return permits > 0 && fraction < 2*time.Microsecond && time.Duration(ahead).Abs() < 2*time.Microsecond
	default:
		return true
	}
}

// chargesOf returns what the scripts of a process charged, in order, and what it gave back of that. A permit may be
// used from at on.
func chargesOf(kind string, about []execution, link int) (charges []charge, given []part) {
	taken := make(map[[2]string]bool) // entries of a log, with the permits that stay
	for _, e := range about {
		d := e.decision
		if e.link != link || d == nil || d.reply == nil {
			continue
		}
		back, debt := e.settled()
		for i, p := range back {
			if e.options() == 0 { // the second time, an entry is no longer in the log
				entry := [2]string(d.args[5+2*i:])
				if taken[entry] {
					continue
				}
				taken[entry] = true
			}
			given = append(given, p)
		}
		if !e.grants() || debt > 0 {
			continue
		}
		begins, used := int64(0), int64(0)
		if kind == windowKind {
			begins, used = d.reply[1], d.reply[0]
		}
		id := e.charged()
		add := func(c charge) { charges = append(charges, c) }
		switch kind {
		case windowKind:
			for run := range int(d.arg(4)) {
				for range d.reply[3+run] {
					if n := d.arg(5 + 2*run); used+n > d.arg(1) {
						begins, used = d.reply[2], 0
					}
					used += d.arg(5 + 2*run)
					at := e.at + begins*int64(time.Millisecond)
					add(charge{at: at, left: d.arg(5 + 2*run), most: d.arg(1), id: id})
				}
			}
		case slidingKind:
			for run := range int(d.arg(3)) {
				for range d.reply[4+run] {
					add(charge{at: e.at, left: d.arg(4 + 2*run), most: d.arg(1), id: id})
				}
			}
		case bucketKind:
			for _, p := range e.places() {
				add(charge{
					at: e.at, left: p.to - p.from, until: p.to - d.now*1000 + e.at, price: p.to - p.from,
					place: p, most: d.arg(2) * 1000,
				})
			}
		default:
			for _, entry := range d.entries() {
				add(charge{at: e.at + (entry.at-d.now)*1000, left: entry.n, id: entry.member})
			}
		}
	}
	slices.SortStableFunc(charges, func(a, b charge) int { return cmp.Compare(a.at, b.at) })
	return charges, given
}

// judgeDebts finds debts that a process was told are booked, but its scripts had not booked then.
func judgeDebts(kind string, asks []*check.Ask, about []execution, link int) (faults []check.Fault) {
	var booked []charge
	m := matching{}
	for _, e := range about {
		if d := e.decision; e.link == link && d != nil && d.reply != nil {
			if _, debt := e.settled(); debt > 0 {
				booked = append(booked, charge{at: e.at})
				m.left, m.paid = append(m.left, debt), append(m.paid, make(map[int]int64))
			}
		}
	}
	for k, a := range asks {
		var may []int
		for i := range booked {
			if a.Called <= booked[i].at && booked[i].at <= a.Return {
				may = append(may, i)
			}
		}
		m.may = append(m.may, may)
		missing := a.N
		if kind == bucketKind {
			missing = (a.N*int64(a.Limit.Per)/a.Limit.Rate - 1000*a.N) / 1000
		}
		for missing > 0 {
			got := m.pay(k, missing, make(map[int]bool))
			if missing -= got; got == 0 {
				faults = append(faults, check.Fault{Promise: "a debt is charged", Detail: fmt.Sprintf(
					"a debt of %d was settled from %v to %v, of which %d were not charged",
					a.N, time.Duration(a.Called), time.Duration(a.Return), missing)})
				break
			}
		}
	}
	return faults
}

// judgeCharges finds requests that a process granted although its scripts had not charged permits for them. A charge
// may pay for a request if the process kept its permits until the call, and they could be used before the return. It
// pays for what was given back of it too. Which request it paid for is not known: the judge looks for a way in which
// the charges pay for all.
func judgeCharges(
	kind string, asks []*check.Ask, charges []charge, given []part, kept, rounding int64,
) (faults []check.Fault) {
	m := matching{paid: make([]map[int]int64, len(charges))}
	asks = slices.Clone(asks)
	slices.SortFunc(asks, func(a, b *check.Ask) int { return cmp.Compare(a.Return, b.Return) })
	for i := range charges {
		m.left, m.paid[i] = append(m.left, charges[i].left), make(map[int]int64)
	}
	need := func(a *check.Ask) int64 {
		if kind == bucketKind {
			return (a.N*int64(a.Limit.Per) - 1000*a.N) / a.Limit.Rate
		}
		return a.N
	}
	for _, a := range asks {
		var may []int
		for i, c := range charges {
			from := c.at
			if kind == bucketKind { // a part of a charge may be used before the rest
				part := c.until - c.price + min(c.price, need(a))
				from = max(from, part-a.Limit.Burst*int64(a.Limit.Per)/a.Limit.Rate)
			}
			since := a.Called - kept
			if kind == windowKind || kind == slidingKind { // each use of what is kept lets the rest be kept for longer
				since -= int64(a.Limit.Per)
			}
			if c.of(kind, a.Limit) && from >= since && from <= a.Return+rounding {
				may = append(may, i)
			}
		}
		m.may = append(m.may, may)
	}
	for _, part := range given {
		var may []int
		for i, c := range charges {
			if kind == bucketKind && part.in(c.place) > 0 || kind != bucketKind && c.id == part.of {
				may = append(may, i)
			}
		}
		m.may = append(m.may, may)
	}
	for k, part := range given {
		if kind == bucketKind {
			part.n -= 1000
		}
		for missing := part.n; missing > 0; {
			got := m.pay(len(asks)+k, missing, make(map[int]bool))
			if missing -= got; got == 0 {
				faults = append(faults, check.Fault{Promise: "what is given back was charged", Detail: fmt.Sprintf(
					"%d were given back, of which %d were not charged, or were given back before", part.n, missing)})
				break
			}
		}
	}
	for k, a := range asks {
		for missing := need(a); missing > 0; {
			got := m.pay(k, missing, make(map[int]bool))
			if missing -= got; got == 0 {
				faults = append(faults, check.Fault{Promise: "what a process grants is charged", Detail: fmt.Sprintf(
					"request %d for %d of %d per %v was granted at %v, of which %d were not charged to the limit then",
					a.ID, a.N, a.Limit.Rate, a.Limit.Per, time.Duration(a.Return), missing)})
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

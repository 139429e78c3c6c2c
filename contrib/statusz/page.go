package statusz

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// page is the status of a process at one instant. Its JSON is the JSON of the handler.
type page struct {
	Program    string            `json:"program"`
	PID        int               `json:"pid"`
	Version    string            `json:"version"`  // of the program
	Cogwheel   string            `json:"cogwheel"` // version of the library
	Uptime     seconds           `json:"uptime_seconds"`
	Time       time.Time         `json:"time"`
	Verdict    verdict           `json:"verdict"`
	Locks      []lockStatus      `json:"locks"`
	Semaphores []semaphoreStatus `json:"semaphores"`
	Delays     []delayStatus     `json:"delays"`
	Limits     []limitStatus     `json:"limits"`
	Renewers   []renewerStatus   `json:"renewers"`
	Wheels     []wheelStatus     `json:"wheels"`

	Refresh int `json:"-"` // seconds, or 0
}

func newPage(sources []Source, started time.Time, rows int) *page {
	now := time.Now()
	p := &page{
		Program: filepath.Base(os.Args[0]), PID: os.Getpid(), Time: now.UTC(), Uptime: seconds(now.Sub(started)),
		// An empty list is [] in JSON.
		Wheels: []wheelStatus{}, Renewers: []renewerStatus{}, Locks: []lockStatus{}, Limits: []limitStatus{},
		Semaphores: []semaphoreStatus{}, Delays: []delayStatus{},
	}
	for _, s := range sources {
		s.add(p, rows)
	}
	p.Version, p.Cogwheel = versions()
	p.Verdict = newVerdict(p)
	return p
}

// library is the path of the module that the objects are of.
const library = "github.com/cogwheel-go/cogwheel"

// versions returns the versions of the program and of the library, as the build has recorded them: "(devel)" for a
// module in a working tree.
func versions() (program, cogwheel string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", "unknown"
	}
	program, cogwheel = cmp.Or(info.Main.Version, "(devel)"), "(devel)"
	for _, m := range info.Deps {
		if m.Path == library && m.Replace == nil {
			cogwheel = m.Version
		}
	}
	return program, cogwheel
}

// Source is an object that a page shows. Make it with a function of this package: Handler panics on a zero Source.
type Source struct {
	add func(p *page, rows int)
}

// newSource returns a Source. It reads the Stats once, so that a nil object panics here and not when the page is
// requested.
func newSource[S any](stats func() S, add func(p *page, rows int)) Source {
	stats()
	return Source{add}
}

// seconds is a duration that is a number of seconds in JSON and short in text.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// String has three digits, which is as exact as the buckets of a Histogram are.
func (s seconds) String() string {
	d := time.Duration(s)
	switch {
	case d < 0:
		return "-" + seconds(-d).String()
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return digits(float64(d)/float64(time.Microsecond)) + " µs"
	case d < time.Second:
		return digits(float64(d)/float64(time.Millisecond)) + " ms"
	case d < time.Minute:
		return digits(d.Seconds()) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%d h %02d min", d/time.Hour, d%time.Hour/time.Minute)
	}
}

func digits(f float64) string {
	places := 2
	switch {
	case f >= 100:
		places = 0
	case f >= 10:
		places = 1
	}
	text := strconv.FormatFloat(f, 'f', places, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// until returns what is left until a deadline, or nil if there is none.
func until(deadline, now time.Time) *seconds {
	if deadline.IsZero() {
		return nil
	}
	left := seconds(deadline.Sub(now))
	return &left
}

// latency is what a page shows of a Histogram. P50, P99 and Max are upper bounds of buckets: less than twice
// the true value.
type latency struct {
	Count uint64  `json:"count"`
	Sum   float64 `json:"sum_seconds"`
	P50   seconds `json:"p50_seconds"`
	P99   seconds `json:"p99_seconds"`
	Max   seconds `json:"max_seconds"`
}

func newLatency(h wheel.Histogram) latency {
	return latency{
		Count: h.Count(), Sum: h.Seconds(),
		P50: seconds(h.Quantile(0.5)), P99: seconds(h.Quantile(0.99)), Max: seconds(h.Quantile(1)),
	}
}

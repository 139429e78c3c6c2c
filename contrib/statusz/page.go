package statusz

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// page is the status of a process at one instant. Its JSON is the JSON of the handler.
type page struct {
	Program    string            `json:"program"`
	PID        int               `json:"pid"`
	Time       time.Time         `json:"time"`
	Wheels     []wheelStatus     `json:"wheels"`
	Renewers   []renewerStatus   `json:"renewers"`
	Locks      []lockStatus      `json:"locks"`
	Limits     []limitStatus     `json:"limits"`
	Semaphores []semaphoreStatus `json:"semaphores"`

	Refresh int `json:"-"` // seconds, or 0
}

func newPage(sources []Source, rows int) *page {
	p := &page{
		Program: filepath.Base(os.Args[0]), PID: os.Getpid(), Time: time.Now().UTC(),
		// An empty list is [] in JSON.
		Wheels: []wheelStatus{}, Renewers: []renewerStatus{}, Locks: []lockStatus{}, Limits: []limitStatus{},
		Semaphores: []semaphoreStatus{},
	}
	for _, s := range sources {
		s.add(p, rows)
	}
	return p
}

// Source is what a page shows of one object.
type Source struct {
	add func(p *page, rows int)
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

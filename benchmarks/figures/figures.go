// Package figures reads the output of benchmarks: what was measured, of which implementation, round by round.
package figures

import (
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// Key is one figure of one benchmark.
type Key struct {
	Package string // the last element of its path
	Bench   string // without impl=…
	Unit    string
}

// Set is what was read.
type Set struct {
	Config map[string]string // the lines "key: value", the first of each key
	Keys   []Key             // in the order of the file
	values map[Key]map[string][]float64
}

// Of returns what was measured of an implementation, in the order of the file.
func (s *Set) Of(k Key, impl string) []float64 { return s.values[k][impl] }

// Read reads the format of go test -bench. The implementation is the part impl=… of a benchmark's name, or what
// stands before the colon of a unit.
func Read(in io.Reader, name string) (*Set, error) {
	s := &Set{Config: map[string]string{}, values: map[Key]map[string][]float64{}}
	r := benchfmt.NewReader(in, name)
	for r.Scan() {
		res, ok := r.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		for _, c := range res.Config {
			if _, ok := s.Config[c.Key]; !ok {
				s.Config[c.Key] = string(c.Value)
			}
		}
		bench, impl := split(string(res.Name))
		for _, v := range res.Values {
			if v.Unit == "sec/op" {
				continue // of one whole iteration; the benchmarks report what matters of it themselves
			}
			if v.OrigUnit != "" { // nanoseconds, which the reader has made seconds
				v.Value, v.Unit = v.OrigValue, v.OrigUnit
			}
			by := impl
			if before, unit, ok := strings.Cut(v.Unit, ":"); ok {
				by, v.Unit = before, unit
			}
			s.add(Key{path.Base(res.GetConfig("pkg")), bench, v.Unit}, by, v.Value)
		}
	}
	return s, r.Err()
}

// Add adds the values of another set after its own. Its configuration stays.
func (s *Set) Add(other *Set) {
	for _, k := range other.Keys {
		for impl, values := range other.values[k] {
			for _, v := range values {
				s.add(k, impl, v)
			}
		}
	}
}

func (s *Set) add(k Key, impl string, v float64) {
	if s.values[k] == nil {
		s.values[k] = map[string][]float64{}
		s.Keys = append(s.Keys, k)
	}
	s.values[k][impl] = append(s.values[k][impl], v)
}

// split takes impl=… and GOMAXPROCS out of a benchmark's name.
func split(name string) (bench, impl string) {
	if i := strings.LastIndexByte(name, '-'); i > 0 && strings.Trim(name[i+1:], "0123456789") == "" {
		name = name[:i]
	}
	var rest []string
	for part := range strings.SplitSeq(name, "/") {
		if v, ok := strings.CutPrefix(part, "impl="); ok {
			impl = v
		} else {
			rest = append(rest, part)
		}
	}
	return strings.Join(rest, "/"), impl
}

// Median returns the median of v, and false if there is none.
func Median(v []float64) (float64, bool) {
	if len(v) == 0 {
		return 0, false
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2, true
}

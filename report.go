package cogwheel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Level is the severity of a Finding.
type Level string

// The levels, from good to bad.
const (
	LevelOK      Level = "ok"      // as expected, or information
	LevelUnknown Level = "unknown" // not known; the text says why
	LevelWarning Level = "warning" // calls work, but a promise is weaker or takes longer to keep
	LevelFailure Level = "failure" // calls fail
)

var levels = []Level{LevelOK, LevelUnknown, LevelWarning, LevelFailure}

// Compare returns a negative number if l is better than other, a positive number if it is worse, and 0 if they
// are equal. A Level that is none of the four is worse than LevelFailure.
func (l Level) Compare(other Level) int { return cmp.Compare(l.rank(), other.rank()) }

func (l Level) rank() int {
	if i := slices.Index(levels, l); i >= 0 {
		return i
	}
	return len(levels)
}

// Report is the result of Check of a Client: the servers, the rights that were checked, and the findings. The
// topology "slots" is that of a ClusterClient with ClusterSlots, such as the client of
// redis.NewFailoverClusterClient. The methods panic on a nil Report.
type Report struct {
	Package  string    `json:"package"`  // the package of the client, for example "redislock"
	User     string    `json:"user"`     // the ACL user in the options of the (first) client, or "default"
	Topology string    `json:"topology"` // "single", "sentinel", "slots", "cluster", "ring", "quorum" or "unknown"
	Servers  []Server  `json:"servers"`  // the servers that were asked; in a cluster, the masters
	Rights   []string  `json:"rights"`   // the rights that were tried: commands, and keys and channels of the objects
	Findings []Finding `json:"findings"` // the worst first
}

// Server is a server that Check has asked. A field that is not known is empty.
type Server struct {
	Addr    string `json:"addr"`
	Name    string `json:"name"`    // "redis" or "valkey"
	Version string `json:"version"` // for example "7.0.15"
	Mode    string `json:"mode"`    // "standalone" or "cluster"
	Role    string `json:"role"`    // "master" or "replica"
	RunID   string `json:"-"`       // identifies the server process
}

// Finding is one result of Check.
type Finding struct {
	Level   Level    `json:"level"`             // "ok", "unknown", "warning" or "failure"
	Subject string   `json:"subject"`           // a word, for example "commands" or "memory"
	Text    string   `json:"text"`              // what was found, in one line
	Servers []string `json:"servers,omitempty"` // addresses; none if it concerns the client
	Missing []string `json:"missing,omitempty"` // rights that the user lacks, as ACL SETUSER takes them
	Advice  string   `json:"advice,omitempty"`  // what to do; "" if nothing
	Cause   error    `json:"-"`                 // the answer of the server, or nil
}

// Level returns the worst level of the findings, LevelOK if there are none.
func (r *Report) Level() Level {
	worst := LevelOK
	for _, f := range r.Findings {
		if f.Level.Compare(worst) > 0 {
			worst = f.Level
		}
	}
	return worst
}

// Missing returns the rights that the user lacks, each once, sorted, as ACL SETUSER takes them; nil if none.
func (r *Report) Missing() []string {
	var missing []string
	for _, f := range r.Findings {
		missing = append(missing, f.Missing...)
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// Err returns an error of one line that names every failure and wraps the replies of the servers, or nil if
// there is no failure. Warnings are no failures.
func (r *Report) Err() error {
	failed := &failedError{}
	var texts []string
	for _, f := range r.Findings {
		if f.Level != LevelFailure {
			continue
		}
		text := f.Text
		if len(r.Servers) > 1 && len(f.Servers) > 0 {
			text = strings.Join(f.Servers, ", ") + ": " + text
		}
		texts = append(texts, text)
		if f.Cause != nil {
			failed.causes = append(failed.causes, f.Cause)
		}
	}
	if texts == nil {
		return nil
	}
	failed.text = strings.ReplaceAll(r.Package+": check: "+strings.Join(texts, "; "), "\n", " ")
	return failed
}

type failedError struct {
	text   string
	causes []error
}

func (e *failedError) Error() string   { return e.text }
func (e *failedError) Unwrap() []error { return e.causes }

// String returns the report as lines for a terminal.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, user %s, %s\n", r.Package, r.User, r.Topology)
	for _, s := range r.Servers {
		var facts []string
		for _, fact := range []string{strings.TrimSpace(s.Name + " " + s.Version), s.Mode, s.Role} {
			if fact != "" {
				facts = append(facts, fact)
			}
		}
		fmt.Fprintf(&b, "  %s  %s\n", s.Addr, strings.Join(facts, ", "))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s %-12s %s\n", f.Level, f.Subject, f.Text)
		if len(f.Servers) > 0 && len(r.Servers) > 1 {
			fmt.Fprintf(&b, "%21s on %s\n", "", strings.Join(f.Servers, ", "))
		}
		if f.Advice != "" {
			fmt.Fprintf(&b, "%21s -> %s\n", "", f.Advice)
		}
	}
	return b.String()
}

// MarshalJSON encodes empty Servers, Rights and Findings as [], not as null.
func (r *Report) MarshalJSON() ([]byte, error) {
	type plain Report
	p := plain(*r)
	p.Servers = append([]Server{}, p.Servers...)
	p.Rights = append([]string{}, p.Rights...)
	p.Findings = append([]Finding{}, p.Findings...)
	return json.Marshal(p)
}

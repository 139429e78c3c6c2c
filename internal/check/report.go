package check

import (
	"cmp"
	"slices"

	"github.com/cogwheel-go/cogwheel"
)

// subjects are the subjects of findings, in the order of a report.
var subjects = []string{
	"reachable", "topology", "version", "scripts", "commands", "keys", "channels", "writable", "memory",
	"persistence", "clock", "options",
}

// Short names of the types of a report.
type finding = cogwheel.Finding

const (
	ok      = cogwheel.LevelOK
	unknown = cogwheel.LevelUnknown
	warning = cogwheel.LevelWarning
	failure = cogwheel.LevelFailure
)

func add(r *cogwheel.Report, findings ...finding) {
	r.Findings = append(r.Findings, findings...)
}

// merge combines equal findings of several servers into one. It sorts the servers and the findings.
func merge(r *cogwheel.Report) *cogwheel.Report {
	var merged []finding
	for _, f := range r.Findings {
		same := func(g finding) bool {
			return f.Level == g.Level && f.Subject == g.Subject && f.Text == g.Text && f.Advice == g.Advice &&
				slices.Equal(f.Missing, g.Missing)
		}
		if at := slices.IndexFunc(merged, same); at >= 0 {
			merged[at].Servers = append(merged[at].Servers, f.Servers...)
			continue
		}
		f.Servers = slices.Clone(f.Servers)
		merged = append(merged, f)
	}
	for _, f := range merged {
		slices.Sort(f.Servers)
	}
	slices.SortStableFunc(merged, func(a, b finding) int {
		bySubject := cmp.Compare(slices.Index(subjects, a.Subject), slices.Index(subjects, b.Subject))
		return cmp.Or(b.Level.Compare(a.Level), bySubject)
	})
	slices.SortFunc(r.Servers, func(a, b cogwheel.Server) int { return cmp.Compare(a.Addr, b.Addr) })
	r.Findings = merged
	return r
}

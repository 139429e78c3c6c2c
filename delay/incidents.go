package delay

import (
	"log/slog"
	"strconv"
	"strings"
)

// IncidentKind is what happened to a task outside of its attempts.
type IncidentKind string

// The kinds of incidents.
const (
	// IncidentLostTooOften: it has failed, because 25 attempts that had begun lost their lease. None of them has
	// OutcomeExhausted; the State of the task has PhaseFailed, and no Error.
	IncidentLostTooOften IncidentKind = "lost too often"
	IncidentDeleted      IncidentKind = "deleted"    // it had failed, and was deleted; see WithMaxFailed
	IncidentNoPayload    IncidentKind = "no payload" // Redis had lost its payload, as by eviction; it was removed
)

// Incident is what happened to a task outside of its attempts. One process learns of it from Redis, or none if that
// process dies.
type Incident struct {
	Queue string
	ID    string
	Kind  IncidentKind
}

// kinds are the kinds of incidents, by the letters of the script.
var kinds = map[string]IncidentKind{"L": IncidentLostTooOften, "D": IncidentDeleted, "M": IncidentNoPayload}

// readIncidents reads incidents of a queue as delay_work reports them, and reports whether it could.
func readIncidents(text string) (incidents []Incident, ok bool) {
	for text != "" {
		length, rest, _ := strings.Cut(text[1:], ":")
		n, err := strconv.Atoi(length)
		kind := kinds[text[:1]]
		if err != nil || n < 0 || n > len(rest) || kind == "" {
			return nil, false
		}
		incidents = append(incidents, Incident{ID: rest[:n], Kind: kind})
		text = rest[n:]
	}
	return incidents, true
}

// report counts and logs the incidents of a call, and calls the hook.
func (c *Client) report(queue string, incidents []Incident) {
	if len(incidents) == 0 {
		return
	}
	m, ids := &c.monitor, make(map[IncidentKind][]string)
	for i := range incidents {
		incidents[i].Queue = queue
		ids[incidents[i].Kind] = append(ids[incidents[i].Kind], incidents[i].ID)
	}
	m.mu.Lock()
	m.stats.LostTooOften += int64(len(ids[IncidentLostTooOften]))
	m.stats.Deleted += int64(len(ids[IncidentDeleted]))
	m.stats.NoPayload += int64(len(ids[IncidentNoPayload]))
	m.mu.Unlock()
	c.goInside(func() {
		for kind, of := range ids {
			name, count, first := logged(queue, of)
			switch kind {
			case IncidentLostTooOften:
				m.logger.Warn("delay: tasks have failed, as their leases were lost too often", name, count, first)
			case IncidentDeleted:
				m.logger.Warn("delay: failed tasks were deleted", name, count, first)
			case IncidentNoPayload:
				m.logger.Warn("delay: tasks were removed, as Redis had lost their payloads", name, count, first)
			}
		}
		for _, one := range incidents {
			if m.hooks.Incident != nil {
				m.call(func() { m.hooks.Incident(one) })
			}
		}
	})
}

// logExhausted logs the attempts of a call that were the last of their tasks.
func (c *Client) logExhausted(queue string, exhausted []*attempt) {
	if len(exhausted) == 0 {
		return
	}
	var ids []string
	for _, a := range exhausted {
		ids = append(ids, a.ID)
	}
	c.goInside(func() {
		name, count, first := logged(queue, ids)
		c.monitor.logger.Warn("delay: tasks have failed, and no attempt follows",
			name, count, first, slog.Any("error", exhausted[0].err))
	})
}

// logged returns the attributes of a log line about tasks.
func logged(queue string, ids []string) (name, count, first slog.Attr) {
	return slog.String("queue", queue), slog.Int("tasks", len(ids)), slog.Any("ids", ids[:min(len(ids), 10)])
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// report is the answer of inspect, permits, limit and tasks.
type report struct {
	Name    string   `json:"name"`
	Objects []object `json:"objects"`
}

func inspect(ctx context.Context, t *tool) error {
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	return t.report(found, "there is nothing of that name")
}

func permits(ctx context.Context, t *tool) error {
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	return t.report(only(found, object.isSemaphore), "there is no semaphore of that name")
}

// report prints what was found.
func (t *tool) report(found []object, missing string) error {
	if len(found) == 0 {
		return fmt.Errorf("%w: %s: %s", errNotFound, quote(t.name), missing)
	}
	if t.json {
		return t.printJSON(report{t.name, found})
	}
	for _, o := range found {
		t.show(o)
	}
	return nil
}

func (t *tool) printJSON(v any) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// quote returns a name as it is if a terminal shows it as it is, and else in quotes.
func quote(name string) string {
	if q := strconv.QuoteToGraphic(name); q[1:len(q)-1] != name || strings.Contains(name, " ") {
		return q
	}
	return name
}

// printf prints. An output that is closed is no error.
func printf(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}

// lines are what is printed of an object: the words of a line in columns.
type lines struct{ *tabwriter.Writer }

func (l lines) add(what string, text ...string) {
	printf(l, "  %s\t%s\n", what, strings.Join(text, "\t"))
}

func (t *tool) show(o object) {
	title := o.Kind
	if o.Note != "" {
		title += " (" + o.Note + ")"
	}
	printf(t.out, "%s: %s\n", quote(t.name), title)
	l := lines{tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)}
	defer func() { _ = l.Flush() }()
	switch {
	case o.isLock():
		o.Lock.show(l)
	case o.isSemaphore():
		o.Permits.show(l)
	case o.isLimit():
		o.Limit.show(l)
	case o.isQueue():
		o.Queue.show(l)
	}
}

func (s *lockState) show(l lines) {
	switch {
	case !s.Held:
		l.add("state", "free")
	case s.Mode != "":
		by := map[string]string{"read": "readers", "write": "a writer"}[s.Mode]
		l.add("state", "held by "+by+", until "+s.TTL.lease())
	default:
		l.add("state", "held, until "+s.TTL.lease())
	}
	for _, h := range s.Holders {
		l.add("holder", h.words()...)
	}
	for i, w := range s.Waiting {
		l.add(fmt.Sprintf("waiter %d", i+1), w.words()...)
	}
	if s.Token > 0 {
		l.add("token", strconv.FormatInt(s.Token, 10))
	}
	subscribed(l, s.Subscribers)
}

// lease says when what is renewed ends.
func (m millis) lease() string {
	if m < 0 {
		return "it is freed: it has no lease"
	}
	return m.String() + " from now unless it is renewed"
}

func (h holder) words() []string {
	words := []string{quote(h.ID)}
	if h.Metadata != "" {
		words = append(words, strconv.QuoteToGraphic(h.Metadata))
	}
	if h.TTL != nil {
		words = append(words, "lease "+h.TTL.String())
	}
	return words
}

func subscribed(l lines, n *int64) {
	if n != nil {
		l.add("listening", fmt.Sprintf("%d (connections of processes that wait, or waited in the last 10s)", *n))
	}
}

func (s *permitState) show(l lines) {
	switch {
	case !s.Set:
		l.add("permits", "not set")
	case s.Held == nil:
		l.add("permits", fmt.Sprintf("%d free; Redis does not know how many are held", s.Free))
	default:
		l.add("permits", fmt.Sprintf("%d free, %d held, %d in all", s.Free, *s.Held, s.Free+*s.Held))
	}
	if s.TTL > 0 {
		l.add("expires", "in "+s.TTL.String())
	}
	for _, p := range s.Permits {
		l.add("held", p.ID, "lease "+p.TTL.String())
	}
	if s.Held != nil && *s.Held > int64(len(s.Permits)) {
		l.add("", fmt.Sprintf("and %d more", *s.Held-int64(len(s.Permits))))
	}
	if s.Waiting != nil {
		l.add("waiting", fmt.Sprintf("%d (processes in the line)", *s.Waiting))
	}
	if s.Token > 0 {
		l.add("token", strconv.FormatInt(s.Token, 10))
	}
	subscribed(l, s.Subscribers)
}

func (s *limitState) show(l lines) {
	if s.Key != "" {
		l.add("key", quote(s.Key))
	}
	if s.Rate > 0 {
		l.add("limit", fmt.Sprintf("%d per %s, burst %d", s.Rate, s.Per, s.Burst))
	} else {
		l.add("limit", "is set in the code; with --rate, cogwheel limit tells what is left")
	}
	if s.Scope != "" {
		l.add("scope", s.Scope)
	}
	if s.KeepAlive != nil && *s.KeepAlive > 0 {
		l.add("keep-alive", s.KeepAlive.String())
	}
	if s.Used != nil {
		l.add("used", fmt.Sprintf("%d in the present window", *s.Used))
	}
	if s.Remaining != nil {
		l.add("left", strconv.FormatInt(*s.Remaining, 10))
	}
	if s.Retry != nil && *s.Retry > 0 {
		l.add("next", "one permit in "+s.Retry.String())
	}
	if s.Full != nil {
		l.add("full", "in "+s.Full.String())
	}
}

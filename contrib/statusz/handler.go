package statusz

import (
	"bytes"
	_ "embed" // the template
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	defaultRows = 50
	maxRows     = 10_000
	maxRefresh  = 3600 // seconds
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// Handler returns the status page of the sources. The page shows locks first, then semaphores, tasks, limits, renewers
// and wheels; sources of one kind keep their order. The uptime counts from this call. The handler answers GET and HEAD
// at any path, and any other method with status 405. It is safe for concurrent use. It may serve after the objects were
// closed. The time of a request grows with the number of held locks and permits, because it reads each once.
//
// The page shows the names of locks and the metadata of their holders to everyone who may request it. Serve it behind
// authentication, or on a port that only operators reach.
func Handler(sources ...Source) http.Handler {
	for _, s := range sources {
		if s.add == nil {
			panic("statusz: a zero Source")
		}
	}
	started := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		p := newPage(sources, started, number(r, "rows", defaultRows, maxRows))
		p.Refresh = number(r, "refresh", 0, maxRefresh)
		body, contentType, err := render(p, wantsJSON(r))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		header := w.Header()
		header.Set("Content-Type", contentType)
		header.Set("Content-Length", strconv.Itoa(len(body)))
		header.Set("Cache-Control", "no-store")
		header.Set("Vary", "Accept")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Content-Security-Policy",
			"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "+
				"form-action 'none'; frame-ancestors 'none'")
		_, _ = w.Write(body)
	})
}

func render(p *page, asJSON bool) (body []byte, contentType string, err error) {
	if asJSON {
		body, err = json.MarshalIndent(p, "", "  ")
		return append(body, '\n'), "application/json", err
	}
	var b bytes.Buffer
	err = pageTemplate.Execute(&b, p)
	return b.Bytes(), "text/html; charset=utf-8", err
}

// number returns the parameter of that name, at most limit, or otherwise if it is no positive number.
func number(r *http.Request, name string, otherwise, limit int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil || n < 1 {
		return otherwise
	}
	return min(n, limit)
}

// wantsJSON reports whether the request asks for JSON: by its format or else by its Accept field, in which
// HTML wins a tie.
func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return quality(accept, "application/json") > quality(accept, "text/html")
}

// quality returns the q of a media type that an Accept field names, or 0 if it does not.
func quality(accept, mediaType string) float64 {
	for entry := range strings.SplitSeq(accept, ",") {
		name, parameters, _ := strings.Cut(entry, ";")
		if !strings.EqualFold(strings.TrimSpace(name), mediaType) {
			continue
		}
		for p := range strings.SplitSeq(parameters, ";") {
			if q, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
				f, err := strconv.ParseFloat(q, 64)
				if err != nil {
					return 0
				}
				return f
			}
		}
		return 1
	}
	return 0
}

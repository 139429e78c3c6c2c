package cogwheelprom_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelprom"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// speed is how much faster than in operation the incidents are played: thresholds in seconds and times of the rules are
// divided by it, as are the intervals of scrapes.
const speed = 60

// scaled divides the times of the rules, and the lateness that they allow, by speed.
func scaled(rules string) string {
	units := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	rules = regexp.MustCompile(`(\[|for: )(\d+)([mhd])`).ReplaceAllStringFunc(rules, func(text string) string {
		at := strings.IndexAny(text, "0123456789")
		n, _ := strconv.Atoi(text[at : len(text)-1])
		d := time.Duration(n) * units[text[len(text)-1:]] / speed
		return text[:at] + strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	})
	return strings.ReplaceAll(rules, "> 20\n", fmt.Sprintf("> %.3f\n", 20.0/speed))
}

// runPlayed is a process of an incident. It serves the metrics of its client, and what the incident asks for.
func runPlayed(name string) error {
	check := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("PLAYED_REDIS")})
	c, err := delay.New(rdb)
	check(err)
	q := c.Queue(name, delay.WithMaxFailed(1), delay.WithRetry(1, delay.Backoff(time.Second, time.Second)))
	registry, release := prometheus.NewRegistry(), make(chan struct{})
	registry.MustRegister(cogwheelprom.NewDelayCollector(name, c))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	http.HandleFunc("/schedule", func(_ http.ResponseWriter, r *http.Request) {
		check(q.Schedule(r.Context(), r.FormValue("id"), 0, nil))
	})
	http.HandleFunc("/release", func(http.ResponseWriter, *http.Request) { close(release) })
	if os.Getenv("PLAYED_SERVES") != "" {
		go func() {
			check(q.Serve(context.Background(), 2, func(_ context.Context, t *delay.Task) error {
				switch {
				case strings.HasPrefix(t.ID, "hangs"):
					<-release
				case strings.HasPrefix(t.ID, "fails"):
					return errors.New("no stock")
				}
				return nil
			}))
		}()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println("listens", listener.Addr())
	return http.Serve(listener, nil) //nolint:gosec // of a test
}

// play is a Prometheus that scrapes the processes of incidents.
type play struct {
	t       *testing.T
	redis   string
	dir     string
	url     string
	targets []string
	client  http.Client
}

func newPlay(t *testing.T) *play {
	t.Helper()
	server := filepath.Join(filepath.Dir(promtool(t)), "prometheus")
	if _, err := exec.LookPath(server); err != nil && os.Getenv("REQUIRE_PROMTOOL") == "" {
		t.Skip("there is no Prometheus beside promtool")
	}
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	p := &play{t: t, redis: redistest.Shared(t).Addr(), dir: t.TempDir(), client: http.Client{Timeout: redistest.Patience}}
	interval := fmt.Sprint((15 * time.Second / speed).Milliseconds(), "ms")
	for name, text := range map[string]string{
		"alerts.yml":   scaled(string(rules)),
		"targets.json": "[]",
		"prometheus.yml": strings.ReplaceAll(`
global: { scrape_interval: I, scrape_timeout: I, evaluation_interval: I }
rule_files: [alerts.yml]
scrape_configs: [{ job_name: shop, file_sd_configs: [{ files: [targets.json], refresh_interval: I }] }]
`, "I", interval),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.url = "http://" + listener.Addr().String()
	require.NoError(t, listener.Close())
	cmd := exec.CommandContext(t.Context(), server, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
		"--web.listen-address="+strings.TrimPrefix(p.url, "http://"), "--log.level=error")
	cmd.Dir = p.dir
	p.start(cmd)
	return p
}

// start starts a process that ends with the test.
func (p *play) start(cmd *exec.Cmd) (end func()) {
	p.t.Helper()
	require.NoError(p.t, cmd.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	p.t.Cleanup(end)
	return end
}

// process starts a process of a client, which Prometheus scrapes from then on.
func (p *play) process(name string, serves bool) (address string, end func()) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), os.Args[0]) //nolint:gosec // this test
	cmd.Env = append(os.Environ(), "PLAYED_REDIS="+p.redis, redistest.ChildEnv+"="+name)
	if serves {
		cmd.Env = append(cmd.Env, "PLAYED_SERVES=1")
	}
	out, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	end = p.start(cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(p.t, err)
	addr, found := strings.CutPrefix(strings.TrimSpace(line), "listens ")
	require.True(p.t, found, line)
	p.targets = append(p.targets, addr)
	text, err := json.Marshal([]map[string][]string{{"targets": p.targets}})
	require.NoError(p.t, err)
	next := filepath.Join(p.dir, "next")
	require.NoError(p.t, os.WriteFile(next, text, 0o600))
	require.NoError(p.t, os.Rename(next, filepath.Join(p.dir, "targets.json")))
	return "http://" + addr, end
}

func (p *play) post(address string) {
	p.t.Helper()
	reply, err := p.client.Post(address, "", nil) //nolint:noctx // the client has a timeout
	require.NoError(p.t, err)
	require.NoError(p.t, reply.Body.Close())
	require.Equal(p.t, http.StatusOK, reply.StatusCode)
}

func (p *play) schedule(address string, ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.post(address + "/schedule?id=" + id)
	}
}

// get reads a reply of Prometheus, and reports whether there is one.
func (p *play) get(path string, to any) bool {
	reply, err := p.client.Get(p.url + path) //nolint:noctx // the client has a timeout
	if err != nil {
		return false // it starts
	}
	defer reply.Body.Close()
	return json.NewDecoder(reply.Body).Decode(to) == nil
}

// awaitScrape waits until Prometheus has seen that a query is true.
func (p *play) awaitScrape(query string) {
	p.t.Helper()
	redistest.Poll(p.t, func() bool {
		var found struct {
			Data struct {
				Result []any `json:"result"`
			} `json:"data"`
		}
		return p.get("/api/v1/query?query="+url.QueryEscape(query), &found) && len(found.Data.Result) > 0
	})
}

// alerts returns the alerts that fire, each with its client.
func (p *play) alerts() map[string]bool {
	var found struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string `json:"labels"`
				State  string            `json:"state"`
			} `json:"alerts"`
		} `json:"data"`
	}
	if !p.get("/api/v1/alerts", &found) {
		return nil
	}
	firing := make(map[string]bool)
	for _, a := range found.Data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]+" "+a.Labels["client"]] = true
		}
	}
	return firing
}

// await waits until an alert fires, or does not, and logs how long that took, multiplied by speed. A process asks each 5 s
// what is overdue, which is not divided by it.
func (p *play) await(what string, fires bool) {
	p.t.Helper()
	began := time.Now()
	deadline := began.Add(20*time.Minute/speed + redistest.Patience)
	for firing := p.alerts(); firing == nil || firing[what] != fires; firing = p.alerts() {
		require.True(p.t, time.Now().Before(deadline), "%s: firing is not %t; %v", what, fires, firing)
	}
	p.t.Logf("%s: %t after %v", what, fires, (time.Since(began) * speed).Round(time.Second))
}

// The alerts for tasks fire in incidents of real processes, and end. Nothing else fires.
func TestPlayed_AlertsForTasks(t *testing.T) {
	t.Parallel()
	redistest.SkipIfShort(t)
	p := newPlay(t)
	hang, _ := p.process("hang", true)
	fail, _ := p.process("fail", true)
	well, _ := p.process("well", true)
	_, endServer := p.process("away", true)
	shop, endShop := p.process("away", false)
	p.awaitScrape(`count(cogwheel_delay_serving == 1) == 4`)
	p.schedule(well, "a", "b")
	endServer()
	p.schedule(shop, "waits")
	endShop()
	p.process("away", false) // it has scheduled nothing

	p.schedule(hang, "hangs", "hangs-too")
	p.awaitScrape(`cogwheel_delay_running{client="hang"} == 2`)
	for i := range 18 { // no claim finds these
		p.schedule(hang, fmt.Sprint("waits", i))
	}
	p.await("CogwheelTasksOverdue hang", true)
	require.False(t, p.alerts()["CogwheelTasksExhausted fail"])
	p.schedule(fail, "fails1", "fails2")
	p.await("CogwheelTasksExhausted fail", true)
	p.await("CogwheelTasksDeleted fail", true)
	p.await("CogwheelTasksUnserved away", true)
	require.False(t, p.alerts()["CogwheelTasksOverdue well"])

	p.post(hang + "/release")
	p.process("away", true)
	for _, what := range []string{
		"CogwheelTasksUnserved away", "CogwheelTasksExhausted fail", "CogwheelTasksDeleted fail", "CogwheelTasksOverdue hang",
	} {
		p.await(what, false)
	}
}

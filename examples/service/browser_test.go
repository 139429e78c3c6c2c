package main_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"html"
	"image"
	"image/draw"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	service "github.com/cogwheel-go/cogwheel/examples/service"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// chromium opens a page in a headless Chromium and returns what it prints.
func chromium(t *testing.T, url string, args ...string) []byte {
	t.Helper()
	args = append(args,
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
		"--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir="+t.TempDir(), url)
	var failure bytes.Buffer
	cmd := exec.CommandContext(redistest.Within(t, 4*redistest.Patience), os.Getenv("BROWSER"), args...)
	cmd.Stderr = &failure
	out, err := cmd.Output()
	require.NoError(t, err, failure.String())
	return out
}

// busy starts a service in which locks, permits and limits are in use, and stay as they are.
func busy(t *testing.T) service.Service {
	t.Helper()
	s := start(t, "")
	ctx := t.Context()
	redistest.Poll(t, func() bool { return s.Locks().Stats().Held == 1 }) // the leader's
	for i := range 4 {
		order := s.Locks().Mutex(fmt.Sprintf("order:%d", 1040+i), redislock.WithMetadata("checkout"))
		_, err := order.Lock(ctx)
		require.NoError(t, err)
		for range i {
			order.LockFunc(ctx, func(*redislock.Lock, error) {})
		}
	}
	_, err := s.Locks().Mutex(`<b onclick="alert(1)">order</b>`).Lock(ctx)
	require.NoError(t, err)

	reports := s.Semaphores().Semaphore("service:reports", 2)
	for range 2 {
		_, err := reports.Acquire(ctx, 1)
		require.NoError(t, err)
	}
	reports.AcquireFunc(ctx, 1, func(*semaphore.Grant, error) {})

	send(t, http.MethodPost, s.API()+"/orders/7/ship")
	for status := 0; status != http.StatusTooManyRequests; {
		status, _ = send(t, http.MethodPost, s.API()+"/nothing")
	}
	redistest.Poll(t, func() bool { return s.Locks().Stats().Waiting == 6 && s.Semaphores().Stats().Waiting == 1 })
	return s
}

// sections returns the facts that a page shows: by heading and label.
func sections(dom []byte) map[string]map[string]string {
	found := make(map[string]map[string]string)
	for _, section := range regexp.MustCompile(`(?s)<section>\s*<h2>(\w+ \w+).*?</section>`).FindAllSubmatch(dom, -1) {
		facts := make(map[string]string)
		for _, fact := range regexp.MustCompile(`<dt>([^<]+)</dt><dd>([^<]*)</dd>`).FindAllSubmatch(section[0], -1) {
			facts[string(fact[1])] = html.UnescapeString(string(fact[2]))
		}
		found[string(section[1])] = facts
	}
	return found
}

// What Chromium shows is what the Stats say. `make test-browser` runs this test.
func TestBrowser_ShowsTheStatusPage(t *testing.T) {
	if os.Getenv("BROWSER") == "" {
		t.Skip("needs a browser: run make test-browser")
	}
	s := busy(t)
	page := s.Ops() + "/debug/cogwheel"
	dom := chromium(t, page, "--dump-dom")
	locks, limits, permits := s.Locks().Stats(), s.Limits().Stats(), s.Semaphores().Stats()
	shown := sections(dom)
	for heading, facts := range map[string]map[string]int64{
		"Locks service": {
			"held": 6, "calls waiting": 6, "acquired": locks.Acquired, "lost": 0, "released": locks.Released,
		},
		"Limits service": {"allowed": limits.Allowed, "denied": limits.Denied, "failed": 0, "decided by policy": 0},
		"Semaphores service": {
			"permits held": 2, "calls waiting": 1, "grants acquired": permits.Acquired, "grants lost": 0,
		},
	} {
		for label, want := range facts {
			require.Equal(t, strconv.FormatInt(want, 10), shown[heading][label], "%s: %s\n%s", heading, label, dom)
		}
	}
	require.Equal(t, "closed", shown["Limits service"]["breaker"])
	require.NotEmpty(t, shown["Wheel service"]["pending"])
	for hold := range s.Locks().Holds() {
		require.Contains(t, html.UnescapeString(string(dom)), `class="name">`+hold.Name+"</td>")
	}
	require.NotContains(t, string(dom), "<b onclick")
	require.NotContains(t, string(dom), "<script")

	saveScreenshot(t, page, 1000, filepath.Join("..", "..", "docs", "statusz.png"))
	_, err := s.Locks().Mutex(strings.Repeat("a-long-name:", 10)).Lock(t.Context())
	require.NoError(t, err)
	const dark = "--blink-settings=preferredColorScheme=0"
	saveScreenshot(t, page, 390, filepath.Join(pictures(t), "phone.png"))
	saveScreenshot(t, page, 390, filepath.Join(pictures(t), "phone-dark.png"), dark)
	saveScreenshot(t, page, 1000, filepath.Join(pictures(t), "dark.png"), dark)
	requireNothingCut(t, page)
}

// pictures returns where to leave the pictures that the documents do not show.
func pictures(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("PICTURES"); dir != "" {
		return dir
	}
	return t.TempDir()
}

// requireNothingCut checks that no element of a page is wider than a phone, by a script in a copy of the page.
func requireNothingCut(t *testing.T, page string) {
	t.Helper()
	_, body := send(t, http.MethodGet, page)
	copied := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `<!DOCTYPE html><iframe id="phone" style="width:390px;height:4000px;border:0" src="data:text/html;base64,`,
			base64.StdEncoding.EncodeToString([]byte(body+`<script>
				const wide = [...document.querySelectorAll("*")].filter(e => e.scrollWidth > e.clientWidth && e.clientWidth > 0
					|| e.getBoundingClientRect().right > innerWidth)
				parent.postMessage(innerWidth + ": " + wide.map(e => e.outerHTML.slice(0, 100)).join("\n"), "*")
			</script>`)), `"></iframe><pre id="found"></pre>
			<script>addEventListener("message", e => { document.getElementById("found").textContent = e.data })</script>`)
	}))
	defer copied.Close()
	dom := string(chromium(t, copied.URL, "--dump-dom", "--virtual-time-budget=5000"))
	require.Contains(t, dom, `<pre id="found">390: </pre>`)
}

// saveScreenshot saves a picture of a page, without the empty rest below it, and checks that there is something
// in it.
func saveScreenshot(t *testing.T, page string, width int, file string, args ...string) {
	t.Helper()
	shot := filepath.Join(t.TempDir(), "shot.png")
	chromium(t, page, append(args, fmt.Sprintf("--window-size=%d,5000", width), "--screenshot="+shot)...)
	text, err := os.ReadFile(shot)
	require.NoError(t, err)
	picture, err := png.Decode(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, width, picture.Bounds().Dx())
	height := heightOfContent(picture)
	require.Greater(t, height, 800)
	require.Less(t, height, 5000, "the whole page is in the picture")

	cut := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.Draw(cut, cut.Bounds(), picture, image.Point{}, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, cut))
	require.NoError(t, os.WriteFile(file, out.Bytes(), 0o644))
}

// heightOfContent returns where the rows begin that have the color of the last one only.
func heightOfContent(picture image.Image) int {
	b := picture.Bounds()
	empty := picture.At(b.Min.X, b.Max.Y-1)
	for y := b.Max.Y - 1; y >= b.Min.Y; y-- {
		for x := b.Min.X; x < b.Max.X; x++ {
			if picture.At(x, y) != empty {
				return min(y+17, b.Max.Y)
			}
		}
	}
	return 0
}

package cogwheelprom_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool returns the path of promtool: PROMTOOL, or the one on PATH. With REQUIRE_PROMTOOL there must be one.
func promtool(t *testing.T) string {
	t.Helper()
	name := os.Getenv("PROMTOOL")
	if name == "" {
		name = "promtool"
	}
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("REQUIRE_PROMTOOL") == "" {
		t.Skip("there is no promtool: install prometheus")
	}
	require.NoError(t, err)
	return path
}

// testAlerts runs the incidents of alerts_test.yml against rules.
func testAlerts(t *testing.T, promtool string, rules []byte) (output string, err error) {
	t.Helper()
	dir := t.TempDir()
	incidents, err := os.ReadFile("alerts_test.yml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), rules, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts_test.yml"), incidents, 0o600))
	cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "alerts_test.yml")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAlerts_FireInIncidents(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	output, err := testAlerts(t, tool, rules)
	require.NoError(t, err, output)

	never := regexp.MustCompile(`(?m)^( +)expr:( .*\n|(?: \|\n(?:\s{10}.*\n)+))`)
	all := never.FindAllIndex(rules, -1)
	require.Len(t, all, bytes.Count(rules, []byte("- alert:")))
	for _, at := range all {
		broken := append(bytes.Clone(rules[:at[0]]), "        expr: vector(0) > 1\n"...)
		broken = append(broken, rules[at[1]:]...)
		output, err := testAlerts(t, tool, broken)
		require.Error(t, err, "no incident needs the rule %s", rules[at[0]:at[1]])
		require.Contains(t, output, "FAILED")
	}
	for _, change := range [][2]string{
		{"by (job, instance, client)", "by (client)"},
		{"[5m]", "[1m]"},
		{`{outcome="failed"}`, ""},
		{`{client!~"leader.*"}`, ""},
		{"_contended_total[15m]) + ", "_contended_total[15m]) + 0 * "},
		{"max by (job, instance, client) (cogwheel_delay_oldest", "0 * max by (job, instance, client) (cogwheel_delay_oldest"},
		{"histogram_quantile(0.99, sum by (job, instance, client, le) (rate(cogwheel_delay", "0 * histogram_quantile(0.99, sum by (job, instance, client, le) (rate(cogwheel_delay"},
		{"seconds) > 20", "seconds) > 1"},
		{"(cogwheel_delay_serving) == 0", "(cogwheel_delay_serving) >= 0"},
		{"sum by (client) (cogwheel_delay_scheduled_total)", "0 * sum by (client) (cogwheel_delay_scheduled_total)"},
		{"max_over_time(cogwheel_delay_serving[1d])", "cogwheel_delay_serving"},
		{`{outcome="exhausted"}`, `{outcome="none"}`},
		{`{outcome="exhausted"}`, ""},
		{`{kind="lost too often"}`, `{kind="none"}`},
		{`{kind="lost too often"}`, ""},
		{"deleted|no payload", "deleted"},
		{"deleted|no payload", "no payload"},
		{"deleted|no payload", ".*"},
		{"< 150", "< 100000"},
	} {
		broken := strings.ReplaceAll(string(rules), change[0], change[1])
		require.NotEqual(t, string(rules), broken)
		output, err := testAlerts(t, tool, []byte(broken))
		require.Error(t, err, "%s instead of %s", change[1], change[0])
		require.Contains(t, output, "FAILED")
	}
}

// Each rule says what to look at, and links to the table of the alerts.
func TestAlerts_SayWhatToLookAt(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	document, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	require.Contains(t, string(document), "\n### Alerts\n")
	annotations := regexp.MustCompile(`summary: ".+"\n +description: ".+"\n +runbook_url: \S+/docs/observability\.md#alerts\n`)
	require.Len(t, annotations.FindAll(rules, -1), bytes.Count(rules, []byte("- alert:")))
}

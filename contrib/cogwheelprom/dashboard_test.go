package cogwheelprom_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var metricName = regexp.MustCompile(`\bcogwheel_[a-z_]+`)

// expressions returns the expr of each target, at any depth.
func expressions(node any) (found []string) {
	switch node := node.(type) {
	case map[string]any:
		for key, value := range node {
			if text, ok := value.(string); ok && key == "expr" {
				found = append(found, text)
			}
			found = append(found, expressions(value)...)
		}
	case []any:
		for _, value := range node {
			found = append(found, expressions(value)...)
		}
	}
	return found
}

func TestDashboard_UsesMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	exported := newProcess(t).families(t)
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard any
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := expressions(dashboard)
	require.Greater(t, len(all), 20)
	for _, expr := range all {
		names := metricName.FindAllString(expr, -1)
		require.NotEmpty(t, names, expr)
		for _, name := range names {
			family := strings.TrimSuffix(name, "_bucket")
			require.Contains(t, exported, family, expr)
			require.Equal(t, family != name, exported[family].GetType().String() == "HISTOGRAM", "%s: a quantile needs the buckets", expr)
			require.Equal(t, strings.HasSuffix(name, "_total") || family != name, strings.Contains(expr, "rate("+name+"{"), expr)
			label := exported[family].GetMetric()[0].GetLabel()[0].GetName()
			require.Contains(t, expr, name+`{job=~"$job", instance=~"$instance", `+label+`=~"$`+label+`"}`)
		}
	}
}

// names returns the metrics that a file names.
func names(t *testing.T, file string) (families []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, name := range metricName.FindAllString(string(text), -1) {
		families = append(families, strings.TrimSuffix(name, "_bucket"))
	}
	require.NotEmpty(t, families)
	return families
}

func TestDocuments_NameEachMetric(t *testing.T) {
	t.Parallel()
	exported := slices.Sorted(maps.Keys(newProcess(t).families(t)))
	documented := slices.Compact(slices.Sorted(slices.Values(names(t, "../../docs/observability.md"))))
	require.Equal(t, exported, documented)
	for _, name := range names(t, "alerts.yml") {
		require.Contains(t, exported, name)
	}
}

func TestDocuments_NameEachAlert(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	alert := regexp.MustCompile(`\bCogwheel[A-Z]\w+`)
	defined, documented := alert.FindAllString(string(rules), -1), alert.FindAllString(string(document), -1)
	slices.Sort(documented)
	require.ElementsMatch(t, defined, slices.Compact(documented))
	require.NotEmpty(t, defined)
}

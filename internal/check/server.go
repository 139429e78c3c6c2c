package check

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// parseInfo reads the reply of INFO.
func parseInfo(text string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			facts[key] = value
		}
	}
	return facts
}

// judgeInfo reports the facts of INFO about memory, persistence and replicas. No client needs INFO, so a missing
// right to it is no warning.
func (n *node) judgeInfo(info map[string]string, err error) {
	switch judge(err) {
	case unreachable:
		n.unreachable(err)
		return
	case noCommand:
		for _, subject := range []string{"memory", "persistence"} {
			n.found(finding{
				Level: unknown, Subject: subject,
				Text: "not known: needs the right +info, which the client does not need",
			})
		}
		return
	}
	n.judgeMemory(info)
	n.judgePersistence(info)
	if n.client.topology() == "sentinel" && info["connected_slaves"] == "0" {
		n.found(finding{
			Level: warning, Subject: "topology", Text: "the primary has no replica, so that a failover is not possible",
			Advice: "look at the replicas",
		})
	}
	n.server.RunID = info["run_id"]
	if n.server.Version == "" && info["redis_version"] != "" {
		n.server.Name, n.server.Version = "redis", info["redis_version"]
	}
}

func (n *node) judgeMemory(info map[string]string) {
	evicted := n.client.evicted(info["maxmemory_policy"])
	policy, limit := info["maxmemory_policy"], info["maxmemory"]
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	most, _ := strconv.ParseFloat(limit, 64)
	switch {
	case policy == "" || limit == "":
		n.found(finding{Level: unknown, Subject: "memory", Text: "the server does not tell its eviction policy"})
	case most > 0 && policy != "noeviction":
		n.found(finding{
			Level: warning, Subject: "memory",
			Text:   fmt.Sprintf("maxmemory-policy %s may evict %s when memory is short", policy, evicted),
			Advice: "CONFIG SET maxmemory-policy noeviction, or a server of its own for " + n.client.Keeps,
		})
	case most > 0 && used > 0.9*most:
		n.found(finding{
			Level: warning, Subject: "memory",
			Text:   fmt.Sprintf("%.0f %% of maxmemory are used: soon the server refuses writes", 100*used/most),
			Advice: remedies["OOM"],
		})
	case most > 0:
		n.found(finding{Level: ok, Subject: "memory", Text: "maxmemory-policy noeviction: no key is evicted"})
	default:
		n.found(finding{Level: ok, Subject: "memory", Text: "no maxmemory: no key is evicted"})
	}
}

// evicted returns what an eviction policy may evict.
func (c *Client) evicted(policy string) string {
	if strings.HasPrefix(policy, "volatile-") {
		return cmp.Or(c.Expires, c.Keeps)
	}
	return c.Keeps
}

func (n *node) judgePersistence(info map[string]string) {
	text := "no append-only file: a restart without a failover loses the latest " + n.client.Keeps
	switch info["aof_enabled"] {
	case "":
		n.found(finding{Level: unknown, Subject: "persistence", Text: "the server does not tell how it persists"})
		return
	case "1":
		text = "append-only file: a restart without a failover keeps " + n.client.Keeps +
			" (with everysec: except the last second)"
	}
	n.found(finding{Level: ok, Subject: "persistence", Text: text})
}

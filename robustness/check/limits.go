package check

import (
	"fmt"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Excess returns by how many permits the worst interval of a limit is above its bound. See [oracle.Excess].
func Excess(granted []*history.Call, bound oracle.Bound) float64 {
	var grants []oracle.Grant
	for _, c := range granted {
		grants = append(grants, oracle.Grant{Call: c.At, Return: c.Return, N: c.N})
	}
	return oracle.Excess(grants, bound)
}

// Limit finds a limit that was not kept. Each loss of the data may have added one burst.
func Limit(granted []*history.Call, bound oracle.Bound, losses int, burst int64) []Fault {
	if worst := Excess(granted, bound); worst > float64(int64(losses)*burst) {
		return []Fault{{"a limit is kept", granted[0].Object, fmt.Sprintf(
			"%.1f permits too many in a window, after %d losses of data with a burst of %d", worst, losses, burst)}}
	}
	return nil
}

package keys

import (
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
)

// All is a combination of limits.
type All struct {
	*algo.Combination
	IDs []ID // of the parts, for requests for one of them alone
}

// shares identifies the keys for the policy LocalShare.
func (a *All) shares() []outage.ID {
	ids := make([]outage.ID, len(a.IDs))
	for i := range a.IDs {
		ids[i] = a.IDs[i].share()
	}
	return ids
}

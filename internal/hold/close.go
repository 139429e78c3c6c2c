package hold

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// closeGrace is the time for a Close whose context has ended.
const closeGrace = time.Second

// ToClose returns the context of a Close that releases holds; longest is the longest of their leases. It ends with
// ctx, or a second after longest. If ctx has ended, it lasts for one second: a deferred Close often gets the
// context whose end is the reason to close, and other processes wait for the holds all the same.
func ToClose(ctx context.Context, w *wheel.Wheel, longest time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		ctx, longest = context.WithoutCancel(ctx), 0
	}
	return w.WithTimeout(ctx, longest+closeGrace)
}

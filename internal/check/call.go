package check

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Object is a lock, a limiter or a semaphore whose needs are checked.
type Object interface{ Err() error }

// grace is the time that a call waits, after the end of its context, for the report of the findings so far.
const grace = 250 * time.Millisecond

// Call is the Check of a client of the library. It refuses bad arguments, and returns the error closed for a client
// whose gate is closed. Otherwise it returns the report of run and the error of that report.
func Call[T Object](
	ctx context.Context, g *gate.Gate, w *wheel.Wheel, argument invalid.Package, closed error, objects []T,
	run func() *cogwheel.Report,
) (*cogwheel.Report, error) {
	if ctx == nil {
		return nil, argument.Nil("context")
	}
	for i, o := range objects {
		if v := reflect.ValueOf(o); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, argument.Error("object", i, "is nil")
		}
		if err := o.Err(); err != nil {
			return nil, err
		}
	}
	if !g.Enter() {
		return nil, closed
	}
	defer g.Leave()
	over, stop := contexts.After(ctx, w, grace)
	defer stop()
	r, answered := gate.Await(g, over, run)
	if !answered {
		return nil, fmt.Errorf("%s: check: %w", argument, contexts.Error(ctx))
	}
	err := r.Err()
	if deadline, ok := ctx.Deadline(); ok && !contexts.Now().Before(deadline) {
		<-ctx.Done() // the connection may notice before the context does
	}
	if err != nil && ctx.Err() != nil {
		err = joined.Errors(err, contexts.Error(ctx))
	}
	return r, err
}

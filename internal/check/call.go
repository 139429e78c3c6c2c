package check

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Object is a lock, a limiter or a semaphore whose needs are checked.
type Object interface{ Err() error }

// grace is the time that a call waits, after the end of its context, for the report of the findings so far.
const grace = 250 * time.Millisecond

// Call is the Check of a client of the library. It refuses bad arguments, and returns the error closed for a client
// whose gate is closed. Otherwise it returns the report of run and the error of that report.
func Call[T Object](
	ctx context.Context, g *gate.Gate, w *wheel.Wheel, argument conventions.Package, closed error, objects []T,
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
	over, stop := wheelentry.AfterEnd(ctx, w, grace)
	defer stop()
	r, answered := gate.Await(g, over, run)
	if !answered {
		return nil, fmt.Errorf("%s: check: %w", argument, conventions.Cause(ctx))
	}
	err := r.Err()
	if deadline, ok := ctx.Deadline(); ok && !conventions.Now().Before(deadline) {
		<-ctx.Done() // the connection may notice before the context does
	}
	if err != nil && ctx.Err() != nil {
		err = conventions.Join(err, conventions.Cause(ctx))
	}
	return r, err
}

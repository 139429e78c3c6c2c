// Package usercode calls functions of the user: hooks, callbacks, handlers, backoffs, and calls that run hooks of the
// user's redis client. Such a function may panic, or end its goroutine with runtime.Goexit, as FailNow of package
// testing does. Both mean the same: the function has failed, and those who did not call it go on.
package usercode

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Failure is how a function has ended that did not return. It is an error.
type Failure struct {
	Value  any    // of the panic; an error after runtime.Goexit
	Stack  string // where it happened
	Exited bool   // by runtime.Goexit
}

var errExited = errors.New("runtime.Goexit was called")

// Error describes the failure, to follow the name of the function.
func (f *Failure) Error() string {
	if f.Exited {
		return "has ended its goroutine"
	}
	return fmt.Sprintf("panicked: %v", f.Value)
}

// Here calls f on the present goroutine. If f does not return, it calls failed with the reason. After a panic, Here
// returns. After runtime.Goexit the goroutine ends with failed: what must follow has to begin on another one there.
// Here allocates nothing unless f fails.
func Here(f func(), failed func(*Failure)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		failure := &Failure{Value: v, Stack: string(debug.Stack())}
		if v == nil {
			failure.Value, failure.Exited = errExited, true
		}
		failed(failure)
	}()
	f()
	returned = true
}

// Apart calls f on a goroutine of its own and waits for its end. If f does not return, Apart calls failed with the
// reason. Apart always returns.
func Apart(f func(), failed func(*Failure)) {
	var failure *Failure
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Here(f, func(x *Failure) { failure = x })
	}()
	<-ended
	if failure != nil {
		failed(failure)
	}
}

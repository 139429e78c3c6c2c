package robustness

import (
	"syscall"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// processFaults are those of processes and their networks.
var processFaults = []*Fault{
	ordered("replies lost after execution", func(r *Run) order {
		return order{LoseReplies: 1 + r.rnd.IntN(5), Cut: r.rnd.IntN(2) == 0}
	}),
	ordered("connections reset", func(*Run) order { return order{Reset: true} }),
	ordered("network cut both ways", func(r *Run) order {
		return order{Lost: redistest.BlackholeUp | redistest.BlackholeDown, For: r.upTo(2 * r.Lease)}
	}),
	ordered("requests lost", func(r *Run) order {
		return order{Lost: redistest.BlackholeUp, For: r.upTo(2 * r.Lease)}
	}),
	ordered("replies lost", func(r *Run) order {
		return order{Lost: redistest.BlackholeDown, For: r.upTo(2 * r.Lease)}
	}),
	ordered("connections refused", func(r *Run) order {
		return order{Lost: redistest.Refuse, Reset: true, For: r.upTo(r.Lease)}
	}),
	ordered("slow network", func(r *Run) order { // up to 500 ms there and back
		return order{Delay: r.upTo(250 * time.Millisecond), For: r.atLeastHalf(time.Second)}
	}),
	ordered("network in slices", func(r *Run) order {
		return order{Slice: 1 + r.rnd.IntN(3), For: r.atLeastHalf(time.Second)}
	}),
	{Name: "client closed amid its calls", Kills: true, Inject: func(r *Run) (bool, error) {
		return false, r.randomProcess().order(order{Name: "client closed amid its calls", Close: true})
	}},
	{Name: "wheel stopped by the user", Kills: true, Inject: func(r *Run) (bool, error) {
		return false, r.randomProcess().order(order{Name: "wheel stopped by the user", StopWheel: true})
	}},
	{Name: "process stopped", Stops: true, Inject: func(r *Run) (bool, error) {
		p := r.randomProcess()
		r.note(history.Stopped, p)
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return false, err
		}
		r.sleep(r.upTo(2 * r.Lease))
		err := p.signal(syscall.SIGCONT)
		r.note(history.Resumed, p)
		return true, err
	}},
	{Name: "process killed", Kills: true, Inject: func(r *Run) (bool, error) {
		return true, r.replace(r.randomProcess())
	}},
}

// ordered returns a fault that one process carries out.
func ordered(name string, what func(*Run) order) *Fault {
	return &Fault{Name: name, Inject: func(r *Run) (bool, error) {
		o := what(r)
		o.Name = name
		if err := r.randomProcess().order(o); err != nil {
			return false, err
		}
		r.sleep(o.For)
		return false, nil
	}}
}

package client

import (
	"errors"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Options are the common options of New. A package embeds them in its config and sets the defaults.
type Options struct {
	Package conventions.Package
	Endless string // reason for which New refuses a client without a ReadTimeout

	Wheel  *wheel.Wheel // nil before SetDefaultWheel
	Logger *slog.Logger

	NoSharing bool // see calls.Config

	// Options of packages whose callers wait for messages.
	Poll     time.Duration
	Channels pubsub.Sharding
}

// SetPoll sets the poll interval of WithPoll.
func (o *Options) SetPoll(d time.Duration) error {
	if d < 10*time.Millisecond || d > time.Hour {
		return o.Package.Error("WithPoll", d, "must be 10ms to 1h")
	}
	o.Poll = d
	return nil
}

// SetSharded sets the channels of WithShardedChannels.
func (o *Options) SetSharded(on bool) error {
	o.Channels = pubsub.Ordinary
	if on {
		o.Channels = pubsub.Sharded
	}
	return nil
}

// SetSharedScripts sets whether calls share scripts, for WithSharedScripts.
func (o *Options) SetSharedScripts(on bool) error {
	o.NoSharing = !on
	return nil
}

// SetDefaultWheel sets wheel.Default() if WithWheel set no wheel. A program that always passes a wheel never makes the
// default one.
func (o *Options) SetDefaultWheel() {
	if o.Wheel == nil {
		o.Wheel = wheel.Default()
	}
}

// CheckName refuses the name of an object whose keys would not share a cluster slot.
func CheckName(p conventions.Package, name string) error {
	if refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name)); ok {
		return p.Error("name", scripts.Quote(name), refused.Reason)
	}
	return nil
}

package waitqueue

import "github.com/cogwheel-go/cogwheel/internal/notify"

// Hub returns a Listen that subscribes to the name's channel.
func Hub(hub *notify.Hub, channel func(name string) string) func(name string, kick func()) (stop func()) {
	return func(name string, kick func()) func() {
		sub := hub.Subscribe(channel(name), kick)
		select {
		case <-sub.Ready():
			// Another's subscription, so its confirmation has been and gone: what was published between the last look and
			// now was not heard.
			kick()
		default:
		}
		return sub.Close
	}
}

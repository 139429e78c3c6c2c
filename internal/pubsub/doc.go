// Package pubsub turns Redis pub/sub messages into wake-up hints.
//
// A [Hub] has one subscription connection and one goroutine per client while any channel is subscribed, and neither
// otherwise. The first [Subscription] of a channel sends SUBSCRIBE. After the last one has closed, the channel stays
// subscribed for the linger, so that a channel in constant use costs no commands.
//
// A hint only says "query again". Pub/sub loses messages whenever a connection breaks, so the hub also wakes the
// subscribers of a channel after each confirmation of its subscription: messages published before may have been missed.
// A subscriber must still query from time to time without a hint, because the hub notices a dead connection only after
// a few ping intervals.
//
//	sub := hub.Subscribe(channel, func() { select { case wake <- struct{}{}: default: } })
//	defer sub.Close()
//	for !try() {
//		select {
//		case <-wake:
//		case <-poll:
//		case <-ctx.Done():
//			return ctx.Err()
//		}
//	}
//
// All timers of the package are entries on the wheel.
package pubsub

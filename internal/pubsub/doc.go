// Package pubsub turns Redis pub/sub messages into wake-up hints.
//
// A [Hub] keeps one subscription connection and one goroutine per client while
// any channel is subscribed, and neither when none is. Channels are counted: the
// first [Subscription] of a channel sends SUBSCRIBE, the last one to close leaves
// the channel subscribed for a linger, so that a hot channel costs nothing per use.
//
// A hint only says "look again". Pub/sub loses messages whenever a connection
// breaks, so the hub also wakes every subscriber after each confirmation of a
// subscription, the first and every later one: whatever was published before it may
// have been missed. A subscriber must still look from time to time by itself, as a
// connection that died in silence is noticed only after a few ping intervals.
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
// Everything timed here is an entry on the wheel.
package pubsub

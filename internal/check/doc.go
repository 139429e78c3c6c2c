// Package check finds out whether a client can work with its servers: whether they can be reached, their
// versions, the rights of the user, whether they take writes, and what weakens or slows the promises of the
// library.
//
// A check needs no right that the client does not need. It tries each right: it sends each command in a form that
// changes nothing, on a key that no other client uses. The answer shows whether the user may run the command, use the
// key and use the channel. All supported servers check these rights in this order, before the arguments. So the answer
// shows the right to a command even if the user may not use the key. Facts that need a further right, such as INFO, are
// reported as unknown without that right.
package check

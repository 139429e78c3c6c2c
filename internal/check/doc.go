// Package check finds out whether a client can work with its servers: whether they can be reached, their
// versions, the rights of the user, whether they take writes, and what weakens or slows the promises of the
// library.
//
// A check needs no right that the client does not need. It learns of a right by using it: it sends each
// command in a form that changes nothing, on a key of its own, and reads in the answer whether the user may run
// the command, use the key or use the channel. All supported servers decide this before they look at the
// arguments, in this order. So the right to a command shows also on a key that the user may not use. What is
// known only by a further right, such as INFO, is reported as unknown without that right.
package check

package robustness

var peerKinds []*Kind

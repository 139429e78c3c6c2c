package robustness

var controlKinds, peerKinds []*Kind

package robustness

// TimerFigures are the figures of a run of the wheel.
type TimerFigures struct{}

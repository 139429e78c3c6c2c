package statusz

import "github.com/cogwheel-go/cogwheel/delay"

type delayStatus struct {
	Name       string        `json:"name"`
	Serving    int           `json:"serving"` // queues
	Running    int           `json:"running"`
	Claimed    int           `json:"claimed"`
	Paused     int           `json:"paused"` // queues
	Overdue    seconds       `json:"overdue_seconds"`
	Scheduled  int64         `json:"scheduled"`
	Cancelled  int64         `json:"cancelled"`
	Done       int64         `json:"done"`
	Retried    int64         `json:"retried"`
	Exhausted  int64         `json:"exhausted"`
	HandedBack int64         `json:"handed_back"`
	Lost       int64         `json:"lost"`
	LostOften  int64         `json:"lost_too_often"`
	Deleted    int64         `json:"deleted"`
	NoPayload  int64         `json:"no_payload"`
	Late       latency       `json:"lateness"`
	Took       latency       `json:"attempt"`
	Renewal    renewalStatus `json:"renewal"`
	LastError  *lastError    `json:"last_error"`
}

// Delays shows the tasks of a *delay.Client under a name. It panics if c is nil.
func Delays(name string, c interface{ Stats() delay.Stats }) Source {
	return newSource(c.Stats, func(p *page, _ int) {
		s := c.Stats()
		p.Delays = append(p.Delays, delayStatus{
			Name: name, Serving: s.Serving, Running: s.Running, Claimed: s.Claimed, Paused: s.Paused,
			Overdue:   seconds(s.Overdue),
			Scheduled: s.Scheduled, Cancelled: s.Cancelled,
			Done: s.Done, Retried: s.Retried, Exhausted: s.Exhausted, HandedBack: s.HandedBack, Lost: s.Lost,
			LostOften: s.LostTooOften, Deleted: s.Deleted, NoPayload: s.NoPayload,
			Late: newLatency(s.Late), Took: newLatency(s.Took), Renewal: newRenewalStatus(s.Renewal),
			LastError: newLastError(s.Err, s.ErrAt, p.Time),
		})
	})
}

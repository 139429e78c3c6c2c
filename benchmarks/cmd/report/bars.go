//go:build unix

package main

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

func (p *page) lockPanels() (panels []panel) {
	impls := []string{"cogwheel", "bsm", "redsync", "rueidislock", "floor"}
	for _, x := range []struct{ title, axis, bench, unit string }{
		{"1 goroutine", "lock and unlock, pairs/s", "Uncontended/goroutines=1/ctx=cancellable", "pairs/s"},
		{"64 goroutines, a name for each", "lock and unlock, pairs/s", "Uncontended/goroutines=64/ctx=cancellable", "pairs/s"},
		{"64 goroutines want one name", "critical sections/s", "HotName/processes=1/goroutines=64", "sections/s"},
		{"4 processes of 16 goroutines want one name", "critical sections/s", "HotNameOfAFleet/processes=4/goroutines=16", "sections/s"},
	} {
		panels = append(panels, panel{x.title, x.axis, figures.Key{Package: "locks", Bench: x.bench, Unit: x.unit}, impls})
	}
	return panels
}

func (p *page) limitPanels() (panels []panel) {
	impls := []string{"cogwheel", "cogwheel-window", "redis_rate"}
	for _, x := range []struct{ title, axis, bench, unit string }{
		{"1 key, 1 goroutine", "decisions/s", "Versus/keys=1/goroutines=1/ctx=cancel", "/s"},
		{"1 key, 64 goroutines", "decisions/s", "Versus/keys=1/goroutines=64/ctx=cancel", "/s"},
		{"64 keys, 64 goroutines", "decisions/s", "Versus/keys=64/goroutines=64/ctx=cancel", "/s"},
		{"a key that is known to be exhausted", "ns per denial", "Denied", "ns/denial"},
	} {
		panels = append(panels, panel{x.title, x.axis, figures.Key{Package: "limits", Bench: x.bench, Unit: x.unit}, impls})
	}
	return panels
}

// panel is a chart of bars: what each implementation took or did.
type panel struct {
	title, axis string
	key         figures.Key
	impls       []string
}

// panels draws charts of bars in columns.
func (p *page) panels(columns int, all ...panel) ([]byte, error) {
	var rows [][]*plot.Plot
	most := 0
	for i, x := range all {
		c, bars, err := p.bars(x, columns)
		if err != nil {
			return nil, err
		}
		if i%columns == 0 {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], c)
		most = max(most, bars)
	}
	height := vg.Length(len(rows)) * (vg.Length(most)*barHeight + 60)
	return svg(height, func(canvas draw.Canvas) {
		tiles := draw.Tiles{Rows: len(rows), Cols: columns, PadX: 16, PadY: 14, PadTop: 8, PadBottom: 6, PadLeft: 6, PadRight: 16}
		for j, row := range plot.Align(rows, tiles, canvas) {
			for i := range row {
				rows[j][i].Draw(row[i])
			}
		}
	})
}

// bars draws one chart and returns how many bars it has.
func (p *page) bars(x panel, columns int) (*plot.Plot, int, error) {
	c := p.newPlot(x.title)
	c.Title.TextStyle.Font.Size = 10.5
	c.X.Label.Text = x.axis
	grid(c, true, false)
	var labels []string
	most := 0.0
	for _, impl := range slices.Backward(x.impls) { // from the bottom
		y, ok := spreadOf(p.set.Of(x.key, impl))
		if !ok {
			continue
		}
		at := float64(len(labels))
		labels = append(labels, plain(names[impl]))
		most = max(most, y.most)
		bar, err := plotter.NewBarChart(plotter.Values{max(0, y.median)}, barHeight*0.62)
		if err != nil {
			return nil, 0, err
		}
		bar.Horizontal, bar.XMin, bar.Color, bar.LineStyle.Width = true, at, colours[impl], 0
		whisker, err := plotter.NewXErrorBars(struct {
			plotter.XYs
			plotter.XErrors
		}{plotter.XYs{{X: y.median, Y: at}}, plotter.XErrors{{Low: y.median - y.least, High: y.most - y.median}}})
		if err != nil {
			return nil, 0, err
		}
		whisker.LineStyle, whisker.CapWidth = draw.LineStyle{Color: ink, Width: 0.8}, 4
		value, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: y.most, Y: at}}, Labels: []string{number(y.median)}})
		if err != nil {
			return nil, 0, err
		}
		value.Offset = vg.Point{X: 5}
		value.TextStyle[0].Font.Size, value.TextStyle[0].YAlign, value.TextStyle[0].Color = 9.5, text.YCenter, ink
		c.Add(bar, whisker, value)
	}
	if most <= 0 {
		return nil, 0, fmt.Errorf("no figures of %v", x.key)
	}
	c.NominalY(labels...)
	c.Y.LineStyle.Width = 0.5
	c.X.Min, c.X.Max = 0, most*1.2
	c.X.Tick.Marker, c.X.Padding, c.Y.Padding = roundTicks(columns), 4, 0
	c.Y.Min, c.Y.Max = -0.6, float64(len(labels))-0.4
	return c, len(labels), nil
}

// roundTicks are at most six round numbers, or four in a narrow column.
type roundTicks int

// Ticks implements plot.Ticker.
func (columns roundTicks) Ticks(_, most float64) (ticks []plot.Tick) {
	wanted := 6.0
	if columns > 1 {
		wanted = 4
	}
	step := math.Pow(10, math.Floor(math.Log10(most/wanted)))
	for _, k := range []float64{1, 2, 5, 10} {
		if most/(step*k) <= wanted {
			step *= k
			break
		}
	}
	for v := 0.0; v <= most; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: number(v)})
	}
	return ticks
}

//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

// Sizes are in points: GitHub shows 600 of them on 800 pixels.
const (
	plotWidth  = vg.Length(600)
	lineHeight = vg.Length(330)
	barHeight  = vg.Length(20)
)

var (
	blue, lightBlue = rgb(0x1b5fb4), rgb(0x6aa2e0)
	orange, purple  = rgb(0xd97f0e), rgb(0x8e5bb0)
	green, lightG   = rgb(0x2a8153), rgb(0x7fc39d)
	brown, gray     = rgb(0x8c6d46), rgb(0x9a9a9a)
	ink             = rgb(0x333333)

	colours = map[string]color.Color{
		"wheel": blue, "inline": lightBlue, "typed": lightBlue, "cogwheel": blue, "cogwheel-window": lightBlue,
		"AfterFunc": orange, "bsm": orange, "redis_rate": orange, "polling": orange,
		"Netty": green, "netty": lightG, "timingwheel": purple, "redsync": purple, "rueidislock": green, "gozero": brown, "floor": gray,
		"before": lightBlue, "cogwheel-few": green, "asynq": orange, "asynq-few": brown,
	}
)

func rgb(v uint32) color.Color {
	return color.RGBA{R: uint8(v >> 16), G: uint8(v >> 8), B: uint8(v), A: 0xff}
}

// plots returns the plots by their path in the repository.
func (p *page) plots() (map[string][]byte, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	million := strconv.Itoa(size(p.Full(), 1_000_000))
	pending := figures.Key{Package: "wheel", Bench: "Pending/pending=" + million}
	timers := []string{"wheel", "typed", "AfterFunc", "timingwheel", "gozero", "netty", "Netty"}
	memory, waiting := pending, pending
	memory.Unit, waiting.Unit = "B/timer", "cpu-ms/s"
	files := map[string][]byte{}
	for name, draw := range map[string]func() ([]byte, error){
		"schedule-stop": p.scheduleStopPlot,
		"lateness":      p.latenessPlot,
		"takeover":      p.takeoverPlot,
		"memory": func() ([]byte, error) {
			return p.panels(1, panel{"Memory of a pending timer, " + readable(million) + " pending", "bytes", memory, timers})
		},
		"waiting": func() ([]byte, error) {
			return p.panels(1, panel{"Processor time while " + readable(million) + " timers wait", "ms per second", waiting, timers})
		},
		"fleet-locks": p.fleetLocksPlot,
		"fleet-tasks": p.fleetTasksPlot,
		"locks":       func() ([]byte, error) { return p.panels(2, p.lockPanels()...) },
		"limits":      func() ([]byte, error) { return p.panels(2, p.limitPanels()...) },
	} {
		svg, err := draw()
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", name, err)
		}
		files["docs/plots/"+name+".svg"] = svg
	}
	return files, nil
}

// newPlot is a plot on white, which is readable on dark pages too.
func (p *page) newPlot(title string) *plot.Plot {
	if !p.Full() {
		title += " (smoke run)"
	}
	c := plot.New()
	c.BackgroundColor = color.White
	c.Title.Text = title
	c.Title.TextStyle.Font.Size = 12
	c.Title.TextStyle.Font.Weight = 2
	c.Title.Padding = 6
	for _, axis := range []*plot.Axis{&c.X, &c.Y} {
		axis.Label.TextStyle.Font.Size, axis.Tick.Label.Font.Size = 10, 9.5
		axis.LineStyle.Color, axis.Tick.Color, axis.Tick.Label.Color = gray, gray, ink
	}
	return c
}

func grid(c *plot.Plot, vertical, horizontal bool) {
	g := plotter.NewGrid()
	line := draw.LineStyle{Color: rgb(0xe2e2e2), Width: 0.6}
	g.Vertical, g.Horizontal = line, line
	if !vertical {
		g.Vertical.Color = nil
	}
	if !horizontal {
		g.Horizontal.Color = nil
	}
	c.Add(g)
}

// point is a place on the x axis and what was measured there.
type point struct {
	x float64
	y spread
}

// chart is a plot of lines with a legend beside it.
type chart struct {
	*plot.Plot
	legend plot.Legend
}

func (p *page) newChart(title, x, y string) *chart {
	c := &chart{p.newPlot(title), plot.NewLegend()}
	c.X.Label.Text, c.Y.Label.Text = x, y
	c.legend.TextStyle.Font.Size, c.legend.Padding = 9.5, 3
	c.legend.Left, c.legend.Top, c.legend.ThumbnailWidth = true, true, 18
	return c
}

func (c *chart) svg(height vg.Length) ([]byte, error) {
	const legend = 138
	return svg(height, func(canvas draw.Canvas) {
		c.Draw(draw.Crop(canvas, 6, -legend, 6, -8))
		c.legend.Draw(draw.Crop(canvas, plotWidth-legend+4, -4, 6, -30))
	})
}

// addLine draws a line through medians, with a bar from the least to the greatest if they are wanted.
func (c *chart) addLine(impl, name string, points []point, spreads bool) error {
	if len(points) == 0 {
		return nil
	}
	var xys plotter.XYs
	var errs plotter.YErrors
	for _, pt := range points {
		xys = append(xys, plotter.XY{X: pt.x, Y: pt.y.median})
		errs = append(errs, struct{ Low, High float64 }{pt.y.median - pt.y.least, pt.y.most - pt.y.median})
	}
	line, dots, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	line.Color, line.Width = colours[impl], 1.8
	dots.Color, dots.Radius, dots.Shape = colours[impl], 2.2, draw.CircleGlyph{}
	if impl == "netty" || impl == "floor" || impl == "before" {
		line.Dashes = []vg.Length{4, 2}
	}
	c.Add(line, dots)
	c.legend.Add(plain(name), line, dots)
	if !spreads {
		return nil
	}
	bars, err := plotter.NewYErrorBars(struct {
		plotter.XYs
		plotter.YErrors
	}{xys, errs})
	if err != nil {
		return err
	}
	bars.LineStyle, bars.CapWidth = draw.LineStyle{Color: colours[impl], Width: 0.8}, 5
	c.Add(bars)
	return nil
}

// logScale gives an axis ticks at 1, 2 and 5 times the powers of ten.
func logScale(axis *plot.Axis, least, most float64) error {
	if least <= 0 || math.IsInf(least, 1) {
		return errors.New("no figures")
	}
	axis.Scale = plot.LogScale{}
	axis.Min, axis.Max = least, most
	var ticks plot.ConstantTicks
	for decade := math.Pow(10, math.Floor(math.Log10(least))); decade <= most; decade *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if v := decade * k; v >= least*0.999 && v <= most*1.001 {
				ticks = append(ticks, plot.Tick{Value: v, Label: number(v)})
			}
		}
	}
	axis.Tick.Marker = ticks
	return nil
}

func (p *page) scheduleStopPlot() ([]byte, error) {
	c := p.newChart("Schedule a timer and stop it", "other timers that are pending", "ns of processor time")
	grid(c.Plot, false, true)
	var places []string
	most, least := 0.0, math.Inf(1)
	for _, impl := range []string{"gozero", "timingwheel", "AfterFunc", "netty", "Netty", "wheel", "floor"} {
		var points []point
		places = nil
		for x, pending := range []int{0, 10_000, 100_000, 1_000_000, 10_000_000} {
			n := strconv.Itoa(size(p.Full(), pending))
			places = append(places, readable(n))
			k := figures.Key{Package: "wheel", Bench: "ScheduleStop/goroutines=1/pending=" + n, Unit: "cpu-ns/call"}
			if y, ok := spreadOf(p.set.Of(k, impl)); ok && y.least > 0 {
				points = append(points, point{float64(x), y})
				most, least = max(most, y.most), min(least, y.least)
			}
		}
		name := names[impl]
		if impl == "floor" {
			name = "clock and two mutexes"
		}
		if err := c.addLine(impl, name, points, true); err != nil {
			return nil, err
		}
	}
	c.NominalX(places...)
	c.X.Min, c.X.Max = -0.3, 4.3
	c.X.Padding = 4
	if err := logScale(&c.Y, least*0.8, most*1.2); err != nil {
		return nil, err
	}
	return c.svg(lineHeight)
}

func (p *page) latenessPlot() ([]byte, error) {
	timers := size(p.Full(), 1_000_000)
	c := p.newChart(readable(strconv.Itoa(timers))+" timers fire over 2 s", "share of the timers that are less late", "ms after the deadline")
	grid(c.Plot, true, true)
	place := func(percent float64) float64 { return -math.Log10(1 - percent/100) }
	most, least := 0.0, math.Inf(1)
	for _, impl := range []string{"AfterFunc", "timingwheel", "netty", "Netty", "inline", "wheel"} {
		var points []point
		for _, percent := range []float64{10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99} {
			k := figures.Key{Package: "wheel", Bench: fmt.Sprintf("Fire/load=dense/timers=%d", timers), Unit: fmt.Sprintf("p%g-late-ms", percent)}
			if y, ok := spreadOf(p.set.Of(k, impl)); ok && y.median >= 0.01 {
				points = append(points, point{place(percent), y})
				most, least = max(most, y.median), min(least, y.median)
			}
		}
		if err := c.addLine(impl, names[impl], points, false); err != nil {
			return nil, err
		}
	}
	var ticks plot.ConstantTicks
	for _, percent := range []float64{50, 90, 99, 99.9, 99.99} {
		ticks = append(ticks, plot.Tick{Value: place(percent), Label: fmt.Sprintf("%g %%", percent)})
	}
	c.X.Tick.Marker = ticks
	c.X.Min, c.X.Max = 0, place(99.99)+0.15
	if err := logScale(&c.Y, least*0.8, most*1.6); err != nil {
		return nil, err
	}
	return c.svg(lineHeight)
}

func (p *page) takeoverPlot() ([]byte, error) {
	c := p.newChart("Takeover of the locks of a killed process", "ms after the end of the lease", "share of the takeovers")
	grid(c.Plot, true, true)
	bench := "Takeover/locks=20"
	if p.Full() {
		bench = "Takeover/locks=100"
	}
	most, least := 0.0, math.Inf(1)
	for _, impl := range []string{"redsync", "bsm", "cogwheel"} {
		var points []point
		for _, percent := range []int{1, 5, 10, 25, 50, 75, 90, 95, 99, 100} {
			k := figures.Key{Package: "locks", Bench: bench, Unit: fmt.Sprintf("p%d-after-ms", percent)}
			if y, ok := spreadOf(p.set.Of(k, impl)); ok && y.median > 0 {
				points = append(points, point{y.median, spread{float64(percent), float64(percent), float64(percent)}})
				most, least = max(most, y.median), min(least, y.median)
			}
		}
		if err := c.addLine(impl, names[impl], points, false); err != nil {
			return nil, err
		}
	}
	if err := logScale(&c.X, least*0.8, most*1.3); err != nil {
		return nil, err
	}
	var ticks plot.ConstantTicks
	for _, percent := range []float64{0, 25, 50, 75, 100} {
		ticks = append(ticks, plot.Tick{Value: percent, Label: fmt.Sprintf("%g %%", percent)})
	}
	c.Y.Tick.Marker = ticks
	c.Y.Min, c.Y.Max = 0, 103
	return c.svg(260)
}

// plain is a name without the marks of Markdown.
func plain(name string) string { return strings.ReplaceAll(name, "`", "") }

// measuredCanvas keeps how wide each text is by the font that the plot is laid out with.
type measuredCanvas struct {
	*vgsvg.Canvas
	widths []vg.Length
}

// FillString implements vg.Canvas.
func (c *measuredCanvas) FillString(f font.Face, at vg.Point, text string) {
	c.widths = append(c.widths, f.Width(text))
	c.Canvas.FillString(f, at, text)
}

func svg(height vg.Length, paint func(draw.Canvas)) ([]byte, error) {
	canvas := &measuredCanvas{Canvas: vgsvg.New(plotWidth, height)}
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Path())
	paint(all)
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	// Viewers have other fonts, in which the texts shall be as wide.
	family := regexp.MustCompile(`font-family:[^;"]*`).ReplaceAllLiteral(out.Bytes(), []byte("font-family:Arial,Helvetica,'Liberation Sans',sans-serif"))
	n := 0
	sized := regexp.MustCompile(`<text `).ReplaceAllFunc(family, func([]byte) []byte {
		n++
		return fmt.Appendf(nil, `<text lengthAdjust="spacingAndGlyphs" textLength="%.1f" `, canvas.widths[n-1].Points())
	})
	if n != len(canvas.widths) {
		return nil, fmt.Errorf("%d texts of %d were drawn", n, len(canvas.widths))
	}
	return sized, nil
}

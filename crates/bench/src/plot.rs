//! Horizontal bars as SVG that is readable on light and on dark pages.

use crate::report::number;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
/// Where bars begin and where the longest ends; labels stand left and figures right of them.
const LEFT: f64 = 178.0;
const RIGHT: f64 = 612.0;
const TOP: f64 = 62.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
/// Beyond this ratio of the longest to the shortest, short bars could not be told apart.
const LINEAR_UP_TO: f64 = 40.0;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Hodei,
    Synced,
    NotSynced,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Hodei => "hodei",
            Class::Synced => "synced",
            Class::NotSynced => "loose",
        }
    }

    fn legend(self) -> &'static str {
        match self {
            Class::Hodei => "Hodei, synced",
            Class::Synced => "peer, synced",
            Class::NotSynced => "peer, not synced or kept nowhere",
        }
    }
}

pub struct Bar {
    pub label: String,
    pub value: f64,
    /// Drawn faintly behind the bar: a tail, as p99 is of p50.
    pub tail: Option<f64>,
    pub text: String,
    pub class: Class,
}

const STYLE: &str = "\
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 } \
.note { fill: #59636e } .grid { stroke: #d1d9e0 } .hodei { fill: #d9480f } .synced { fill: #1c7ed6 } \
.loose { fill: #868e96 } .tail { opacity: .3 } .own { font-weight: 600 } \
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .note { fill: #9198a1 } .grid { stroke: #3d444d } \
.hodei { fill: #ff7b3d } .synced { fill: #4dabf7 } .loose { fill: #adb5bd } }";

/// How a value becomes a place on the page.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn of(bars: &[Bar]) -> Self {
        let ends = || bars.iter().map(|bar| bar.tail.unwrap_or(bar.value).max(bar.value));
        let high = ends().fold(f64::MIN_POSITIVE, f64::max);
        let least = bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0).fold(high, f64::min);
        if high / least <= LINEAR_UP_TO {
            return Self { low: 0.0, high, log: false };
        }
        // A whole decade below the shortest, so that it is still a bar.
        Self { low: 10f64.powf((least / 2.0).log10().floor()), high, log: true }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        LEFT + share * (RIGHT - LEFT)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (0..12).map(|i| self.low * 10f64.powi(i));
            return decades.take_while(|tick| *tick <= self.high).collect();
        }
        let rough = self.high / 4.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * decade).find(|step| *step >= rough).unwrap_or(rough);
        (0..6).map(|i| f64::from(i) * step).take_while(|tick| *tick <= self.high * 1.001).collect()
    }
}

/// The bars from the best to the worst, as the caller has sorted them.
pub fn bars(title: &str, note: &str, bars: &[Bar]) -> String {
    let scale = Scale::of(bars);
    let bottom = TOP + ROW * bars.len() as f64;
    let height = bottom + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\"><title>{0}</title>\n<style>{STYLE}</style>\n<text class=\"title\" x=\"8\" y=\"22\">{0}</text>\n\
         <text class=\"note\" x=\"8\" y=\"42\">{1}{2}</text>\n",
        escape(title),
        escape(note),
        if scale.log { "; logarithmic scale" } else { "" },
    );
    for tick in scale.ticks() {
        let (x, y) = (scale.place(tick), bottom + 16.0);
        _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>",
            TOP - 6.0
        );
        _ = writeln!(
            svg,
            "<text class=\"note\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            number(tick)
        );
    }
    for (row, bar) in bars.iter().enumerate() {
        draw(&mut svg, &scale, bar, TOP + ROW * row as f64);
    }
    legend(&mut svg, bars, bottom + 40.0);
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, scale: &Scale, bar: &Bar, y: f64) {
    let (class, baseline) = (bar.class.name(), y + BAR - 3.5);
    let own = if bar.class == Class::Hodei { "own" } else { "" };
    _ = writeln!(
        svg,
        "<text class=\"{own}\" x=\"{:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 8.0,
        escape(&bar.label)
    );
    let mut rect = |value: f64, class: &str| {
        let width = (scale.place(value) - LEFT).max(1.5);
        _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>"
        );
    };
    if let Some(tail) = bar.tail {
        rect(tail, &format!("{class} tail"));
    }
    rect(bar.value, class);
    let end = scale.place(bar.tail.unwrap_or(bar.value).max(bar.value)) + 6.0;
    _ = writeln!(svg, "<text class=\"{own}\" x=\"{end:.1}\" y=\"{baseline:.1}\">{}</text>", escape(&bar.text));
}

fn legend(svg: &mut String, bars: &[Bar], y: f64) {
    let mut x = LEFT;
    for class in [Class::Hodei, Class::Synced, Class::NotSynced] {
        if !bars.iter().any(|bar| bar.class == class) {
            continue;
        }
        let (name, text) = (class.name(), class.legend());
        _ = writeln!(
            svg,
            "<rect class=\"{name}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"2\"/>",
            y - 10.0
        );
        _ = writeln!(svg, "<text class=\"note\" x=\"{:.1}\" y=\"{y:.1}\">{text}</text>", x + 16.0);
        x += 36.0 + 6.6 * text.len() as f64;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64) -> Bar {
        Bar { label: "a <b>".into(), value, tail: None, text: String::new(), class: Class::Synced }
    }

    #[test]
    fn short_bars_beside_long_ones_get_a_logarithmic_scale() {
        let (near, far) = (Scale::of(&[bar(1.0), bar(39.0)]), Scale::of(&[bar(1.0), bar(4000.0)]));
        assert!(!near.log && far.log);
        assert!(far.place(1.0) > LEFT && (far.place(4000.0) - RIGHT).abs() < 0.001);
    }

    #[test]
    fn text_cannot_break_the_picture() {
        let svg = bars("A & B", "", &[bar(1.0)]);
        assert!(svg.contains("A &amp; B") && svg.contains("a &lt;b&gt;"));
    }
}

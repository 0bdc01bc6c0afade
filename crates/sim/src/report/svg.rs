//! A small SVG writer.
//!
//! Shapes carry a class and no colour: the page's style sheet decides, which is what makes
//! dark mode and print work. All text is escaped here and all coordinates pass through
//! [`coordinate`], so a plot cannot write a broken picture.

use std::fmt::Write;

use super::format::escape;

pub type Point = (f64, f64);

#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// An empty `tip` is no tooltip.
    pub fn rect(&mut self, class: &str, at: Point, size: Point, tip: &str) {
        let (x, y) = (coordinate(at.0), coordinate(at.1));
        let (w, h) = (coordinate(size.0.max(0.0)), coordinate(size.1.max(0.0)));
        self.shape(
            &format!(r#"rect class="{class}" x="{x}" y="{y}" width="{w}" height="{h}""#),
            tip,
        );
    }

    pub fn circle(&mut self, class: &str, at: Point, radius: f64, tip: &str) {
        let (x, y, r) = (coordinate(at.0), coordinate(at.1), coordinate(radius));
        self.shape(&format!(r#"circle class="{class}" cx="{x}" cy="{y}" r="{r}""#), tip);
    }

    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        let (x1, y1) = (coordinate(from.0), coordinate(from.1));
        let (x2, y2) = (coordinate(to.0), coordinate(to.1));
        self.shape(&format!(r#"line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}""#), "");
    }

    /// A line through the points; `closed` makes it an area.
    pub fn path(&mut self, class: &str, points: &[Point], closed: bool, tip: &str) {
        let mut d = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let command = if i == 0 { 'M' } else { 'L' };
            let _ = write!(d, "{command}{} {}", coordinate(*x), coordinate(*y));
        }
        if closed {
            d.push('Z');
        }
        self.shape(&format!(r#"path class="{class}" d="{d}""#), tip);
    }

    pub fn text(&mut self, class: &str, at: Point, text: &str) {
        self.text_with_tip(class, at, text, "");
    }

    pub fn text_with_tip(&mut self, class: &str, at: Point, text: &str, tip: &str) {
        let (x, y) = (coordinate(at.0), coordinate(at.1));
        let (text, tip) = (escape(text), title(tip));
        let _ = writeln!(self.body, r#"<text class="{class}" x="{x}" y="{y}">{text}{tip}</text>"#);
    }

    fn shape(&mut self, tag: &str, tip: &str) {
        let name = tag.split(' ').next().unwrap_or(tag);
        let _ = match title(tip) {
            t if t.is_empty() => writeln!(self.body, "<{tag}/>"),
            t => writeln!(self.body, "<{tag}>{t}</{name}>"),
        };
    }

    /// Returns the element, with a name and a description for screen readers. `id` must be unique
    /// in the page.
    pub fn finish(self, id: &str, name: &str, description: &str) -> String {
        let (w, h) = (coordinate(self.width), coordinate(self.height));
        format!(
            "<svg viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\">\n<title id=\"{id}-t\">{}</title>\n\
             <desc id=\"{id}-d\">{}</desc>\n{}</svg>\n",
            escape(name),
            escape(description),
            self.body
        )
    }
}

fn title(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) }
}

/// A tenth of a pixel is all that can be seen.
fn coordinate(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), |s| if s == "-0" { "0" } else { s }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short_and_finite() {
        assert_eq!(coordinate(1.0), "1");
        assert_eq!(coordinate(-0.01), "0");
        assert_eq!(coordinate(2.345), "2.3");
        assert_eq!(coordinate(f64::NAN), "0");
    }

    #[test]
    fn text_and_tips_are_escaped() {
        let mut svg = Svg::new(1.0, 1.0);
        svg.text("t", (0.0, 0.0), "<a>");
        svg.rect("r", (0.0, 0.0), (1.0, -1.0), "x & y");
        let text = svg.finish("id", "<n>", "d");
        assert!(
            text.contains("&lt;a&gt;") && text.contains("x &amp; y") && text.contains("&lt;n&gt;")
        );
        assert!(text.contains(r#"height="0""#) && text.contains("</rect>"));
    }
}

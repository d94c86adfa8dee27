//! The balance of a plan as a picture: one self-contained SVG document, readable in light and dark.

use std::fmt::Write;

use super::balance::{Balance, balance, bound, human_seconds, reasons};
use super::text::{count, human_bytes, name};
use super::workers::WorkersReport;

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
/// Where the bars begin and how long the longest is.
const BARS_AT: f64 = 110.0;
const BARS_WIDE: f64 = 470.0;
const ROW: f64 = 20.0;
const BAR: f64 = 13.0;
const LINE: f64 = 19.0;
/// Characters of the small font that fit into a line.
const FITS: usize = 116;

const STYLE: &str = "\
text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:#1f2933}\
.h{font-size:16px;font-weight:600}.s{fill:#52606d}.r{text-anchor:end}\
.bg{fill:#ffffff}.bar{fill:#3b82c4}.over{fill:#d97706}.track{fill:#e8edf2}\
.ideal{stroke:#1f2933;stroke-width:1.5;stroke-dasharray:4 3}\
@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.s{fill:#9aa5b1}.bg{fill:#14181d}\
.bar{fill:#5fa3dd}.over{fill:#f0a63a}.track{fill:#262d35}.ideal{stroke:#e4e7eb}}";

/// The picture.
pub fn workers_svg(report: &WorkersReport) -> String {
    let plan = &report.plan;
    let balance = balance(plan);
    let mut page = Page {
        body: String::new(),
        y: MARGIN + 8.0,
    };
    page.text(MARGIN, "h", "Work by worker");
    page.y += LINE + 3.0;
    page.text(MARGIN, "s", &format!("fork {}", name(&plan.source)));
    page.y += LINE;
    let to = plan.snapshot.as_ref().map_or_else(String::new, name);
    page.text(MARGIN, "s", &format!("to {to}"));
    page.y += LINE;
    let summary = format!(
        "{}, {}, {}; estimated {} until the slowest is done, ideal {}",
        count(plan.workers.len() as u64, "worker", "workers"),
        count(plan.objects, "object", "objects"),
        human_bytes(plan.bytes),
        human_seconds(balance.slowest),
        human_seconds(balance.ideal),
    );
    page.text(MARGIN, "", &summary);
    page.y += LINE + 6.0;
    if balance.per_row > 1 {
        let note = format!(
            "{} workers a row; the bar is the slowest of them, the numbers are the sums",
            balance.per_row
        );
        page.text(MARGIN, "s", &note);
        page.y += LINE;
    }
    draw_bars(&mut page, &balance);
    section(&mut page, "Estimate by method", &methods(report));
    let mut why = reasons(plan);
    if why.is_empty() {
        why.push("nothing: the work is spread as evenly as it can be divided".into());
    }
    why.push(bound(plan));
    section(
        &mut page,
        "What the slowest takes longer than the ideal for",
        &why,
    );
    page.finish()
}

fn draw_bars(page: &mut Page, balance: &Balance) {
    let scale = BARS_WIDE / balance.slowest.max(f64::MIN_POSITIVE);
    let ideal = BARS_AT + (balance.ideal * scale).min(BARS_WIDE);
    let top = page.y - 4.0;
    page.y += 12.0;
    for row in &balance.rows {
        page.anchored(BARS_AT - 8.0, &row.label);
        page.bar("track", BARS_AT, BARS_WIDE);
        let end = (BARS_AT + row.seconds * scale).min(BARS_AT + BARS_WIDE);
        page.bar("bar", BARS_AT, end.min(ideal) - BARS_AT);
        if end > ideal {
            page.bar("over", ideal, end - ideal);
        }
        let text = format!(
            "{}, {}, {}",
            human_seconds(row.seconds),
            count(row.objects, "object", "objects"),
            human_bytes(row.bytes)
        );
        page.text(BARS_AT + BARS_WIDE + 10.0, "s", &text);
        page.y += ROW;
    }
    let bottom = page.y - ROW + 10.0;
    page.line("ideal", ideal, top + 4.0, bottom);
    page.y = bottom + 14.0;
    let label = format!("ideal {}", human_seconds(balance.ideal));
    match ideal > BARS_AT + BARS_WIDE / 2.0 {
        true => page.anchored(ideal + 4.0, &label),
        false => page.text(ideal - 4.0, "s", &label),
    }
    page.y += LINE + 4.0;
}

fn methods(report: &WorkersReport) -> Vec<String> {
    let estimate = &report.estimate;
    let mut lines: Vec<String> = estimate
        .methods
        .iter()
        .map(|(method, sum)| {
            let money = match (sum.money, &estimate.currency) {
                (Some(money), Some(currency)) => format!(", {money:.4} {}", name(currency)),
                _ => String::new(),
            };
            format!(
                "{method}: {}, {}, {}, {}, {} one after another{money}",
                count(sum.objects, "object", "objects"),
                human_bytes(sum.bytes),
                count(sum.read_requests, "read request", "read requests"),
                count(sum.write_requests, "write request", "write requests"),
                human_seconds(sum.seconds)
            )
        })
        .collect();
    let mut sum = format!(
        "all: {} one after another",
        human_seconds(estimate.total_seconds)
    );
    if let (Some(money), Some(currency)) = (estimate.money, &estimate.currency) {
        let _ = write!(sum, ", {money:.4} {} by your prices", name(currency));
    }
    lines.push(sum);
    lines
}

fn section(page: &mut Page, title: &str, lines: &[String]) {
    page.y += 4.0;
    page.text(MARGIN, "h", title);
    page.y += LINE + 2.0;
    for line in lines {
        page.text(MARGIN, "", line);
        page.y += LINE;
    }
    page.y += 8.0;
}

/// What is drawn so far, and how far down.
struct Page {
    body: String,
    y: f64,
}

impl Page {
    fn text(&mut self, x: f64, class: &str, text: &str) {
        let y = self.y;
        let text = escape(&shorten(text));
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        );
    }

    /// Text that ends at `x`.
    fn anchored(&mut self, x: f64, text: &str) {
        self.text(x, "s r", text);
    }

    /// A bar in the row whose text stands at `y`.
    fn bar(&mut self, class: &str, x: f64, width: f64) {
        let (y, width) = (self.y - BAR + 2.5, width.max(0.0));
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}"/>"#
        );
    }

    fn line(&mut self, class: &str, x: f64, from: f64, to: f64) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x:.1}" y1="{from:.1}" x2="{x:.1}" y2="{to:.1}"/>"#
        );
    }

    fn finish(self) -> String {
        let height = self.y + 6.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\">\n<title>Work by worker</title>\n\
             <style>{STYLE}</style>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A text that fits, its middle left out if it is too long.
fn shorten(text: &str) -> String {
    let length = text.chars().count();
    if length <= FITS {
        return text.to_string();
    }
    let half = FITS / 2 - 1;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(length - half).collect();
    format!("{head}\u{2026}{tail}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_do_not_break_the_document() {
        assert_eq!(escape(r#"<a b="&">"#), "&lt;a b=&quot;&amp;&quot;&gt;");
        let long = "x".repeat(300);
        assert!(shorten(&long).chars().count() <= FITS);
    }
}

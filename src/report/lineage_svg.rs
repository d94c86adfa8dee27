//! The lineage as a picture: a lane per job, a dot per snapshot, a curve to the snapshot it grew from.

use crate::ownership::{FamilyTree, SnapshotSummary, short_job};

use super::lineage::{job_name, started_text};
use super::text::{human_bytes, name};

const LANE: usize = 64;
/// The width of the line below the picture.
const LEGEND_WIDTH: usize = 760;
const STEP: usize = 104;
const LEFT: usize = 150;
const TOP: usize = 44;
/// Wider pictures are no use to anybody; older snapshots are left out, and the picture says so.
const COLUMNS: usize = 200;

/// The forest as SVG. Snapshots of one job are in one lane, by number from left to right; the area of
/// the ring shows the bytes that only this snapshot uses.
pub fn lineage_svg(tree: &FamilyTree) -> String {
    let mut numbers: Vec<i64> = tree
        .branches
        .iter()
        .flat_map(|b| &b.snapshots)
        .map(|s| s.snapshot.number)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let left_out = numbers.len().saturating_sub(COLUMNS);
    let numbers = numbers.get(left_out..).unwrap_or_default().to_vec();
    let lanes = lanes(tree);
    let x = |s: &SnapshotSummary| {
        let column = numbers.binary_search(&s.snapshot.number).ok()?;
        Some(LEFT + column * STEP)
    };
    let y = |branch: usize| TOP + lanes.get(branch).copied().unwrap_or(0) * LANE + LANE / 2;
    // Wide enough for the line that explains it.
    let width = (LEFT + numbers.len().max(1) * STEP).max(LEGEND_WIDTH);
    let height = TOP + tree.branches.len().max(1) * LANE + 28;
    let most = tree
        .branches
        .iter()
        .flat_map(|b| &b.snapshots)
        .map(|s| s.exclusive.bytes)
        .max();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"13\" fill=\"#333\">who depends on whom</text>\n"
    );
    for (n, branch) in tree.branches.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        let label = match branch.job.is_empty() {
            true => job_name(branch),
            false => short_job(&branch.job),
        };
        let cut = label.char_indices().rev().nth(20).map_or(0, |(at, _)| at);
        let shown = if cut > 0 {
            format!("…{}", &label[cut..])
        } else {
            label
        };
        svg.push_str(&format!(
            "<text x=\"12\" y=\"{}\" fill=\"{color}\"><title>{}</title>{}</text>\n",
            y(n) + 4,
            escape(&job_name(branch)),
            escape(&shown)
        ));
        let mut last: Option<usize> = None;
        for s in &branch.snapshots {
            let Some(here) = x(s) else { continue };
            if let Some(before) = last {
                svg.push_str(&format!(
                    "<line x1=\"{before}\" y1=\"{0}\" x2=\"{here}\" y2=\"{0}\" stroke=\"{color}\" stroke-width=\"2\"/>\n",
                    y(n)
                ));
            }
            last = Some(here);
        }
        if let Some(growth) = branch.grew_from
            && let Some(from) = tree
                .branches
                .get(growth.branch)
                .and_then(|b| b.snapshots.get(growth.snapshot))
            && let (Some(x1), Some(x2)) = (x(from), branch.snapshots.first().and_then(x))
        {
            let (from, to) = ((x1, y(growth.branch)), (x2, y(n)));
            svg.push_str(&curve(from, to, color, growth.shared_objects == 0));
        }
        // Later ones that were forked from elsewhere.
        let shown = usize::from(branch.grew_from.is_some());
        for s in branch.snapshots.iter().skip(shown) {
            if let Some(from) = &s.started_from
                && let Some((other, place)) = tree.find(&from.directory)
                && let Some(from) = tree
                    .branches
                    .get(other)
                    .and_then(|b| b.snapshots.get(place))
                && let (Some(x1), Some(x2)) = (x(from), x(s))
            {
                svg.push_str(&curve((x1, y(other)), (x2, y(n)), color, true));
            }
        }
    }
    for (n, branch) in tree.branches.iter().enumerate() {
        for s in &branch.snapshots {
            if let Some(x) = x(s) {
                svg.push_str(&dot(
                    s,
                    x,
                    y(n),
                    COLORS[n % COLORS.len()],
                    most.unwrap_or(0),
                ));
            }
        }
    }
    let more = match left_out {
        0 => String::new(),
        n => format!("; the oldest {n} numbers are left out"),
    };
    svg.push_str(&format!(
        "<text x=\"12\" y=\"{}\" fill=\"#666\">ring: bytes that only this snapshot uses; curve: the job refers to objects of it; \
         dashed: started from it and independent{more}</text>\n</svg>\n",
        height - 10
    ));
    svg
}

/// From one dot to another; dashed for what is independent.
fn curve((x1, y1): (usize, usize), (x2, y2): (usize, usize), color: &str, dashed: bool) -> String {
    // Of one number they stand below each other: the curve goes around what is between them.
    let (before, after) = match x1 == x2 {
        true => (x1 - STEP / 3, x2 - STEP / 3),
        false => ((x1 + x2) / 2, (x1 + x2) / 2),
    };
    let dash = if dashed {
        " stroke-dasharray=\"5 4\""
    } else {
        ""
    };
    format!(
        "<path d=\"M{x1} {y1} C{before} {y1} {after} {y2} {x2} {y2}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>\n"
    )
}

const COLORS: [&str; 6] = [
    "#1f6feb", "#c2410c", "#15803d", "#7c3aed", "#be185d", "#0e7490",
];

/// The lane of each branch: children come right below the branch they grew from.
fn lanes(tree: &FamilyTree) -> Vec<usize> {
    let mut lanes = vec![usize::MAX; tree.branches.len()];
    let mut next = 0;
    let mut pending: Vec<usize> = (0..tree.branches.len())
        .rev()
        .filter(|n| tree.branches.get(*n).is_some_and(|b| b.grew_from.is_none()))
        .collect();
    while let Some(n) = pending.pop() {
        match lanes.get_mut(n) {
            Some(lane) if *lane == usize::MAX => *lane = next,
            _ => continue,
        }
        next += 1;
        let children = tree.branches.iter().enumerate().rev();
        pending.extend(
            children
                .filter(|(_, b)| b.grew_from.is_some_and(|g| g.branch == n))
                .map(|(c, _)| c),
        );
    }
    for lane in lanes.iter_mut().filter(|lane| **lane == usize::MAX) {
        *lane = next;
        next += 1;
    }
    lanes
}

fn dot(s: &SnapshotSummary, x: usize, y: usize, color: &str, most: u64) -> String {
    let part = if most == 0 {
        0.0
    } else {
        s.exclusive.bytes as f64 / most as f64
    };
    let ring = 6.0 + 10.0 * part.sqrt();
    let fill = if s.missing_objects > 0 {
        "white"
    } else {
        color
    };
    format!(
        "<circle cx=\"{x}\" cy=\"{y}\" r=\"{ring:.1}\" fill=\"{color}\" opacity=\"0.25\"/>\
         <circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{fill}\" stroke=\"{color}\" stroke-width=\"2\"><title>{}: {}, {} exclusive{}</title></circle>\
         <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">{}</text>\n",
        escape(&s.directory.to_string()),
        human_bytes(s.total.bytes),
        human_bytes(s.exclusive.bytes),
        escape(&started_text(s)),
        y + 28,
        escape(&shorten(&s.snapshot.name)),
    )
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(16) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

fn escape(text: &str) -> String {
    name(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

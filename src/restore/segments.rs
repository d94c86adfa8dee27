//! Merged files: which bytes are still in use, and whether copying only those is cheaper.

use crate::snapshot::{Part, References};
use crate::store::Method;

use super::cost::CostModel;
use super::restore_plan::LiveRange;

/// Of a file all of whose references are segments the bytes in use; the ranges to copy if that
/// is wanted and cheaper; and the time the copy takes, in nanoseconds.
pub(super) fn live_part(
    cost: &CostModel,
    method: Method,
    size: u64,
    all: &References,
    own: &[u32],
) -> (Option<u64>, Vec<LiveRange>, u64) {
    let price = cost.of(method);
    let whole = price.nanoseconds(size);
    let mut segments: Vec<(u64, u64)> = Vec::new();
    for number in own {
        match all.references.get(*number as usize).map(|r| r.part) {
            Some(Part::Segment { start, length }) => {
                segments.push((start, start.saturating_add(length)));
            }
            _ => return (None, Vec::new(), whole),
        }
    }
    segments.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, end) in segments {
        match ranges.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => ranges.push((start, end)),
        }
    }
    let live: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    let more = (ranges.len() as u64).saturating_sub(1);
    let parts = price
        .nanoseconds(live)
        .saturating_add(price.latency_ns.saturating_mul(more));
    if !cost.live_ranges || parts >= whole {
        return (Some(live), Vec::new(), whole);
    }
    let mut new_start = 0;
    let ranges = ranges
        .into_iter()
        .map(|(start, end)| {
            let range = LiveRange {
                start,
                length: end - start,
                new_start,
            };
            new_start += range.length;
            range
        })
        .collect();
    (Some(live), ranges, parts)
}

//! Small pieces of text that several reports use.

use crate::error::printable;

/// Bytes for people: `0 B`, `812 B`, `1.5 KiB`, `12.0 GiB`. Powers of 1024, one decimal.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match UNITS.get(unit) {
        Some(unit) if *unit != "B" => format!("{value:.1} {unit}"),
        _ => format!("{bytes} B"),
    }
}

/// A name that others chose, on one line, with control characters spelled out.
pub(crate) fn name(what: impl std::fmt::Display) -> String {
    printable(&what.to_string()).into_owned()
}

/// `1 object`, `2 objects`.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Rows as aligned columns, two blanks apart; columns in `right` are right-aligned, the last one
/// is not padded.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let pad = widths
                .get(c)
                .unwrap_or(&0)
                .saturating_sub(cell.chars().count());
            let blanks = " ".repeat(pad);
            if c > 0 {
                line.push_str("  ");
            }
            match right.contains(&c) {
                true => line.push_str(&(blanks + cell)),
                false => line.push_str(&(cell.clone() + &blanks)),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well_at_every_size() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}

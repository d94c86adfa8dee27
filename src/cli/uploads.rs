//! `forkpoint uploads`.

use std::time::{Duration, SystemTime};

use futures::StreamExt;

use crate::error::Result;
use crate::progress::Progress;
use crate::report::{uploads_json, uploads_text};
use crate::store::Stores;

use super::ui::Ui;
use super::{Output, exit, location};

/// Uploads aborted at once.
const ABORTED_AT_ONCE: usize = 16;

/// Find uploads in parts to S3 that were begun and never completed, which no listing shows and every
/// bill does; with --abort, end them.
///
/// A fork or `duplicate -r` that was killed goes on with its own when it is run again, and a finished one
/// leaves none. This is for what nobody will go on with: a `duplicate` of one object that was killed, too.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A bucket, a folder or an object.
    url: String,
    /// Only those that were begun so long ago: 90m, 12h, 7d. Uploads that are still being written must
    /// not be ended.
    #[arg(long, value_name = "AGE", value_parser = parse_age, default_value = "24h")]
    older_than: Duration,
    /// End them. Left out: only show.
    #[arg(long)]
    abort: bool,
}

/// Seconds, minutes, hours, days or weeks: `30s`, `90m`, `12h`, `7d`, `2w`.
pub(super) fn parse_age(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("{text:?} is no age; write 30s, 90m, 12h, 7d or 2w");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text
        .strip_suffix(unit)
        .and_then(|n| n.parse().ok())
        .ok_or_else(wrong)?;
    let seconds = number.checked_mul(seconds).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let folder = location::parse(&args.url)?;
    let now = SystemTime::now();
    let (old, young): (Vec<_>, Vec<_>) = stores
        .open_uploads(&folder)
        .await?
        .into_iter()
        // Of unknown age is not old.
        .partition(|u| u.age(now).is_some_and(|age| age >= args.older_than));
    let mut failed = Vec::new();
    if args.abort {
        ui.begin("aborting", old.len() as u64, 0);
        let mut aborting = futures::stream::iter(&old)
            .map(|upload| async move { (upload, stores.abort_upload(upload).await) })
            .buffer_unordered(ABORTED_AT_ONCE);
        while let Some((upload, result)) = aborting.next().await {
            match result {
                Ok(()) => ui.advance(1, 0),
                Err(e) => failed.push((upload.clone(), e)),
            }
        }
        ui.end();
    }
    let code = match failed.first() {
        None => exit::DONE,
        Some(_) => exit::RESUMABLE,
    };
    Ok(Output {
        text: uploads_text(&old, young.len(), args.abort, &failed, now),
        json: uploads_json(&old, young.len(), args.abort, &failed, now),
        svg: None,
        code,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_with_a_unit() {
        assert_eq!(parse_age("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_age("2w"), Ok(Duration::from_secs(1_209_600)));
        for wrong in [
            "",
            "d",
            "7",
            "7 d",
            "-1d",
            "1y",
            "99999999999999999999w",
            "1d1",
        ] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }
}

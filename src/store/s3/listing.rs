//! ListObjectsV2 with our own parser: object_store's listing drops a whole page for one odd key, and
//! does not tell the storage class.

use http::Method as HttpMethod;

use crate::error::{Error, ErrorKind, Result};

use super::super::http::{Asking, Attempt, Wire, answered_badly, encode_part, patience};
use super::super::location::Location;
use super::super::stat::Stat;
use super::bucket::S3Bucket;
use super::xml::{self, ListBucketResult};

/// One page of a listing: objects, and where the next page begins.
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Stat)>,
    pub(crate) next: Option<String>,
}

impl S3Bucket {
    /// One page of the keys that begin with `prefix`, up to 1,000. One request.
    pub(crate) async fn page(
        &self,
        wire: Wire<'_>,
        folder: &Location,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<Page> {
        let mut query = format!(
            "encoding-type=url&list-type=2&prefix={}",
            encode_part(prefix)
        );
        if let Some(token) = token {
            query = format!("continuation-token={}&{query}", encode_part(token));
        }
        let query = &query;
        let outcome = wire.ask(
            Asking {
                operation: "list",
                at: folder,
                patience: patience(0),
            },
            |_| async move { self.signed(self.request(HttpMethod::GET, "", query)?).await },
            move |answer, _| async move {
                match xml::parse::<ListBucketResult>(&answer.body, "ListBucketResult") {
                    Some(listed) if answer.status == 200 => Attempt::Done(listed),
                    _ => answered_badly(&answer, "list", folder),
                }
            },
        );
        let listed = outcome.await?.value;
        if listed.is_truncated && listed.next_continuation_token.is_none() {
            return Err(
                Error::new(ErrorKind::Incomplete, "the listing ends in the middle")
                    .during("list")
                    .at(folder),
            );
        }
        let encoded = listed.encoding_type.as_deref() == Some("url");
        let mut objects = Vec::with_capacity(listed.contents.len());
        for object in listed.contents {
            let key = match encoded {
                true => decode(&object.key).ok_or_else(|| {
                    Error::corrupt("a key of the listing is not UTF-8")
                        .during("list")
                        .at(folder)
                })?,
                false => object.key,
            };
            let stat = Stat {
                size: object.size,
                tag: object.e_tag,
                version: None,
                storage_class: object.storage_class,
                modified: object.last_modified.as_deref().and_then(unix_millis),
            };
            objects.push((key, stat));
        }
        let next = listed
            .is_truncated
            .then_some(listed.next_continuation_token)
            .flatten();
        Ok(Page { objects, next })
    }
}

/// A key as S3 encodes it in a listing: percent-encoded, and a blank as `+`.
fn decode(key: &str) -> Option<String> {
    let plain = key.replace('+', " ");
    percent_encoding::percent_decode_str(&plain)
        .decode_utf8()
        .ok()
        .map(|k| k.into_owned())
}

/// Milliseconds since 1970 of a time as S3 writes it: `2009-10-12T17:50:30.000Z`, always UTC.
fn unix_millis(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !text.ends_with('Z') || !(1..=12).contains(&month) || year < 1970 {
        return None;
    }
    let fraction = text.get(20..23).and_then(|f| f.parse::<u64>().ok());
    // Days since 1970 of the proleptic Gregorian calendar, counted from March so that the leap day
    // comes last.
    let (y, m) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day.checked_sub(1)?;
    let days = days.checked_sub(719_468)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + fraction.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::unix_millis;

    #[test]
    fn times_of_a_listing_are_read() {
        for (text, millis) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2009-10-12T17:50:30.000Z", Some(1_255_369_830_000)),
            ("2024-02-29T23:59:59.123Z", Some(1_709_251_199_123)),
            ("2000-03-01T00:00:00Z", Some(951_868_800_000)),
            ("yesterday", None),
            ("2009-13-12T17:50:30Z", None),
        ] {
            assert_eq!(unix_millis(text), millis, "{text}");
        }
    }
}

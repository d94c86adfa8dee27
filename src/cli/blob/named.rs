//! A blob as people name it.

use crate::blob::client::BlobClient;
use crate::blob::wire::BlobList;
use crate::blob::{BlobKey, Digest, JobId, JobState, shortened};
use crate::error::{Error, ErrorKind, Result, printable};
use crate::report::count;

/// Fewest digits of a beginning.
const FEWEST_DIGITS: usize = 8;
/// Digits of a SHA-256.
const ALL_DIGITS: usize = 64;
/// Most candidates that a message lists.
const MOST_LISTED: usize = 10;

/// A whole digest, or the beginning of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    Whole(Digest),
    Beginning(String),
}

impl Named {
    /// Reads either.
    ///
    /// # Errors
    ///
    /// `Invalid` for anything else, and for a digest that no blob can have.
    pub(super) fn parse(text: &str) -> Result<Named> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.bytes().all(digit) && (FEWEST_DIGITS..=ALL_DIGITS).contains(&text.len()) {
            return Ok(Named::Beginning(text.to_string()));
        }
        let digest = Digest::parse(text).map_err(|_| no_digest(text))?;
        if digest.size == 0 && !digest.is_empty_blob() {
            return Err(Error::invalid("no blob of 0 bytes has this digest")
                .at(digest)
                .hint(format!("the empty blob is {}", Digest::of(b""))));
        }
        Ok(Named::Whole(digest))
    }

    /// Fails for a beginning: what changes something must name it whole.
    ///
    /// # Errors
    ///
    /// `Invalid`.
    pub(super) fn must_be_whole(&self) -> Result<()> {
        match self {
            Named::Whole(_) => Ok(()),
            Named::Beginning(text) => Err(Error::invalid(match text.len() {
                ALL_DIGITS => {
                    "the digits of a digest without the size after them are enough to look at a blob, not to hold it or \
                     give it back"
                }
                _ => "the beginning of a digest is enough to look at a blob, not to hold it or give it back",
            })
            .at(text)
            .hint("name the whole digest, as `forkpoint blob ls` prints it")),
        }
    }

    /// The blob of `job`. A whole digest costs nothing, a beginning one listing of the job.
    ///
    /// # Errors
    ///
    /// `NotFound` if no blob begins so, `Invalid` if several do; those of [`BlobClient::blobs`].
    pub(super) async fn find(&self, client: &BlobClient, job: &JobId) -> Result<BlobKey> {
        let digest = match self {
            Named::Whole(digest) => *digest,
            Named::Beginning(text) => choose(text, job, &client.blobs(job).await?)?,
        };
        let job = job.clone();
        Ok(BlobKey { job, digest })
    }
}

/// What is wrong with a text that names no blob.
fn no_digest(text: &str) -> Error {
    let lower = text.to_ascii_lowercase();
    if lower != text && Named::parse(&lower).is_ok() {
        return Error::invalid("the digits of a digest are written in lower case")
            .at(text)
            .hint(format!("write {lower}"));
    }
    let hint = format!(
        "a digest is the SHA-256 in {ALL_DIGITS} lower-case hex digits, `-`, the size in bytes; \
         its first {FEWEST_DIGITS} digits or more will do"
    );
    let few = !text.is_empty() && text.len() < FEWEST_DIGITS;
    let message = match few && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => format!(
            "{} are too few to name a blob",
            count(text.len() as u64, "digit", "digits")
        ),
        false => "this is no digest of a blob".to_string(),
    };
    Error::invalid(message).at(shortened(text)).hint(hint)
}

/// The one blob of a listing that begins so. The empty one is in no listing, and always there.
fn choose(text: &str, job: &JobId, list: &BlobList) -> Result<Digest> {
    let empty = Digest::of(b"");
    let listed = list.blobs.iter().map(|b| (b.digest, b.name.as_ref()));
    let mut found: Vec<(Digest, String)> = listed
        .filter(|(digest, _)| digest.hex().starts_with(text))
        .map(|(digest, name)| (digest, name.map(ToString::to_string).unwrap_or_default()))
        .collect();
    if empty.hex().starts_with(text) && !found.iter().any(|(d, _)| *d == empty) {
        found.push((empty, "(empty)".to_string()));
    }
    match (&found[..], list.state) {
        ([(digest, _)], _) => Ok(*digest),
        ([], JobState::Terminal(outcome)) => Err(Error::refused(format!(
            "job {job} is over ({outcome}) and its blobs are gone"
        ))
        .hint("use another job id")),
        ([], _) => Err(Error::new(
            ErrorKind::NotFound,
            match text.len() {
                ALL_DIGITS => format!("no blob of job {job} has the digest `{text}`"),
                _ => format!("no blob of job {job} begins with `{text}`"),
            },
        )
        .hint(format!("`forkpoint blob ls {job}` shows what there is"))),
        (several, _) => {
            let mut message = format!("{} blobs of job {job} begin with `{text}`:", several.len());
            for (digest, name) in several.iter().take(MOST_LISTED) {
                message.push_str(&format!(" {digest} {}", printable(name)));
                message.truncate(message.trim_end().len());
                message.push(',');
            }
            message.pop();
            if several.len() > MOST_LISTED {
                message.push_str(", and others");
            }
            Err(Error::invalid(message).hint("write more digits"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::wire::BlobEntry;
    use crate::blob::{BlobState, Class, DisplayName, Moment};

    fn digest(first: &str, size: u64) -> Digest {
        Digest::parse(&format!("{first:0<64}-{size}")).unwrap()
    }

    fn list(digests: &[Digest], state: JobState) -> BlobList {
        let entry = |d: &Digest| BlobEntry {
            digest: *d,
            class: Class::Retained,
            state: BlobState::Staged,
            name: DisplayName::parse(&format!("{}.jar", d.size)).ok(),
            holders: Vec::new(),
            keep_until: None,
            readers: 0,
            object: None,
        };
        BlobList {
            now: Moment(0),
            state,
            blobs: digests.iter().map(entry).collect(),
        }
    }

    #[test]
    fn a_name_is_a_digest_or_at_least_eight_digits_of_one() {
        let whole = digest("abcdef0123", 7);
        assert_eq!(
            Named::parse(&whole.to_string()).unwrap(),
            Named::Whole(whole)
        );
        for good in ["abcdef01", &whole.hex()] {
            assert!(matches!(Named::parse(good).unwrap(), Named::Beginning(_)));
        }
        for (named, said) in [
            ("abcdef01", "the beginning"),
            (&whole.hex(), "without the size"),
        ] {
            let e = Named::parse(named).unwrap().must_be_whole().unwrap_err();
            assert!(e.to_string().contains(said), "{e}");
        }
        let long = "a".repeat(65);
        let impossible = format!("{}-0", "0".repeat(64));
        for bad in [
            "",
            "abcdef0",
            "ABCDEF01",
            "abcdef0g",
            "abcdef01-7",
            &long,
            &impossible,
        ] {
            let e = Named::parse(bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{bad}");
            assert!(e.next_step().is_some(), "{bad}");
        }
        for (bad, said) in [
            ("abcdef0", "7 digits are too few"),
            ("ABC", "3 digits are too few"),
            ("ABCDEF01", "lower case"),
            ("abcdef01-7", "no digest"),
        ] {
            let e = Named::parse(bad).unwrap_err();
            assert!(e.to_string().contains(said), "{bad}: {e}");
        }
        let e = Named::parse("abcdef0").unwrap_err();
        assert!(e.next_step().is_some_and(|s| s.contains("first 8 digits")));
    }

    #[test]
    fn one_is_chosen_and_several_are_listed() {
        let job = JobId::parse("orders").unwrap();
        let (a, b, c) = (
            digest("aaaaaaaa1", 1),
            digest("aaaaaaaa2", 2),
            digest("b", 3),
        );
        let all = list(&[a, b, c], JobState::Active);
        assert_eq!(choose("aaaaaaaa1", &job, &all).unwrap(), a);
        assert_eq!(choose("b0000000", &job, &all).unwrap(), c);
        let several = choose("aaaaaaaa", &job, &all).unwrap_err();
        assert_eq!(several.kind(), ErrorKind::Invalid);
        let text = several.to_string();
        for part in ["2 blobs", &format!("{a} 1.jar"), &format!("{b} 2.jar")] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let none = choose("cccccccc", &job, &all).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        let over = list(&[], JobState::Terminal(crate::blob::Outcome::Finished));
        assert_eq!(
            choose("cccccccc", &job, &over).unwrap_err().kind(),
            ErrorKind::Refused
        );
        // Nothing is stored for the empty blob.
        let empty = Digest::of(b"");
        assert_eq!(choose(&empty.hex()[..8], &job, &all).unwrap(), empty);
    }
}

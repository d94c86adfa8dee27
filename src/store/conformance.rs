//! What "duplicate" means, as a suite that every pair of stores must pass. For tests of a new store, of a
//! server that speaks a known protocol, or of settings.
//!
//! ```no_run
//! # async fn demo() -> forkpoint::Result<()> {
//! use forkpoint::store::{Location, Stores, conformance};
//!
//! let stores = Stores::from_env();
//! let from = Location::parse("s3://a-bucket/scratch")?;
//! let to = Location::parse("s3://another-bucket/scratch")?;
//! for case in conformance::check_duplicate(&stores, &from, &to).await? {
//!     case.result.unwrap_or_else(|why| panic!("{}: {why}", case.name));
//! }
//! # Ok(()) }
//! ```

use bytes::Bytes;

use crate::clock;
use crate::error::{ErrorKind, Result};

use super::duplicate::{DuplicateOptions, Existing};
use super::location::{Location, Provider};
use super::open::Stores;
use super::receipt::Receipt;

const MIB: usize = 1024 * 1024;

/// One rule of the suite, and whether it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// The rule, as a sentence's end: "duplicate ...".
    pub name: &'static str,
    /// `Err` says what was seen instead.
    pub result: std::result::Result<(), String>,
}

/// Keys that some layer may spell otherwise on its way.
const NAMES: [&str; 12] = [
    "with space",
    "plus+sign",
    "per%cent",
    "escaped%20already",
    "häß-日本語-🦀",
    "a=b&c=d",
    "question?mark",
    "number#sign",
    "quote'and\"quote",
    "brackets[1](2){3}",
    "semicolon;comma,dollar$at@",
    "tilde~exclamation!star*",
];

/// Tries every rule, each in a folder of its own below `from` and `to`, and removes what it wrote.
/// A few hundred requests, about 70 MB.
///
/// # Errors
///
/// If one of the two places cannot be written at all. A rule that is broken is no error: see
/// [`Case::result`].
pub async fn check_duplicate(stores: &Stores, from: &Location, to: &Location) -> Result<Vec<Case>> {
    let name = format!("conformance-{:016x}", clock::random_id());
    let bench = Bench {
        stores,
        from: from.join(&name)?,
        to: to.join(&format!("{name}-copies"))?,
    };
    stores
        .put(&bench.from.join("x")?, Bytes::from_static(b"x"), false)
        .await?;
    stores
        .put(&bench.to.join("x")?, Bytes::from_static(b"x"), false)
        .await?;
    let mut cases = Vec::new();
    macro_rules! case {
        ($name:literal, $rule:ident) => {
            cases.push(Case {
                name: $name,
                result: bench.$rule(stringify!($rule)).await,
            });
        };
    }
    case!("makes equal bytes of any size", equal_bytes);
    case!("copies large objects in parts", in_parts);
    case!("keeps an object that is there", keeps_what_is_there);
    case!("replaces it when told to", replaces_when_told);
    case!("names a source that is missing", missing_source);
    case!("refuses a source that has changed", changed_source);
    case!("refuses an object onto itself", onto_itself);
    case!("makes an independent object", independent);
    case!("keeps every name as it is", names);
    case!("lets one of eight win a race", race);
    case!("leaves nothing but the object", nothing_else);
    bench.clean_up().await?;
    Ok(cases)
}

struct Bench<'a> {
    stores: &'a Stores,
    from: Location,
    to: Location,
}

type Outcome = std::result::Result<(), String>;

/// What an error becomes in a rule that it breaks.
fn seen(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn bytes(seed: u8, size: usize) -> Bytes {
    let mut state = u32::from(seed).wrapping_mul(0x9E37_79B9) | 1;
    let mut all = Vec::with_capacity(size);
    all.resize_with(size, || {
        // A linear congruential generator; its high bits look random enough to tell places apart.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    all.into()
}

impl Bench<'_> {
    fn source(&self, rule: &str, name: &str) -> std::result::Result<Location, String> {
        self.from.join(&format!("{rule}/{name}")).map_err(seen)
    }

    fn destination(&self, rule: &str, name: &str) -> std::result::Result<Location, String> {
        self.to.join(&format!("{rule}/{name}")).map_err(seen)
    }

    async fn write(&self, at: &Location, content: &Bytes) -> Outcome {
        let put = self.stores.put(at, content.clone(), false);
        put.await.map(|_| ()).map_err(seen)
    }

    async fn duplicate(
        &self,
        from: &Location,
        to: &Location,
        options: &DuplicateOptions,
    ) -> std::result::Result<Receipt, String> {
        self.stores.duplicate(from, to, options).await.map_err(seen)
    }

    async fn holds(&self, at: &Location, content: &Bytes) -> Outcome {
        let there = self.stores.read(at, 64 * MIB as u64).await.map_err(seen)?;
        match there == *content {
            true => Ok(()),
            false => Err(format!(
                "{at} holds {} bytes that are not the {} written",
                there.len(),
                content.len()
            )),
        }
    }

    async fn is_missing(&self, at: &Location) -> Outcome {
        match self.stores.find(at).await.map_err(seen)? {
            None => Ok(()),
            Some(_) => Err(format!("there is an object at {at}")),
        }
    }

    async fn fails(
        &self,
        kind: ErrorKind,
        from: &Location,
        to: &Location,
        options: &DuplicateOptions,
    ) -> Outcome {
        match self.stores.duplicate(from, to, options).await {
            Err(e) if e.kind() == kind => Ok(()),
            Err(e) => Err(format!("instead of {kind:?}: {e}")),
            Ok(_) => Err(format!("it worked instead of failing as {kind:?}")),
        }
    }

    async fn equal_bytes(&self, rule: &str) -> Outcome {
        for size in [0, 1, 1000, 64 * 1024, 9 * MIB] {
            let (from, to) = (
                self.source(rule, &size.to_string())?,
                self.destination(rule, &size.to_string())?,
            );
            let content = bytes(1, size);
            self.write(&from, &content).await?;
            let receipt = self
                .duplicate(&from, &to, &DuplicateOptions::default())
                .await?;
            if receipt.bytes != size as u64 {
                return Err(format!(
                    "the receipt says {} of {size} bytes",
                    receipt.bytes
                ));
            }
            self.holds(&to, &content).await?;
            self.holds(&from, &content).await?;
        }
        Ok(())
    }

    async fn in_parts(&self, rule: &str) -> Outcome {
        let (from, to) = (self.source(rule, "a")?, self.destination(rule, "a")?);
        let content = bytes(2, 11 * MIB);
        self.write(&from, &content).await?;
        let options = DuplicateOptions {
            split_at: 6 * MIB as u64,
            part_size: 5 * MIB as u64,
            ..DuplicateOptions::default()
        };
        self.duplicate(&from, &to, &options).await?;
        self.holds(&to, &content).await
    }

    async fn keeps_what_is_there(&self, rule: &str) -> Outcome {
        for size in [10, 9 * MIB] {
            let name = size.to_string();
            let (from, to) = (self.source(rule, &name)?, self.destination(rule, &name)?);
            self.write(&from, &bytes(3, size)).await?;
            let theirs = bytes(4, 10);
            self.write(&to, &theirs).await?;
            let options = DuplicateOptions {
                split_at: 6 * MIB as u64,
                part_size: 5 * MIB as u64,
                ..DuplicateOptions::default()
            };
            self.fails(ErrorKind::AlreadyExists, &from, &to, &options)
                .await?;
            self.holds(&to, &theirs).await?;
        }
        Ok(())
    }

    async fn replaces_when_told(&self, rule: &str) -> Outcome {
        let (from, to) = (self.source(rule, "a")?, self.destination(rule, "a")?);
        let content = bytes(5, 1000);
        self.write(&from, &content).await?;
        self.write(&to, &bytes(6, 2000)).await?;
        let options = DuplicateOptions {
            existing: Existing::Overwrite,
            ..DuplicateOptions::default()
        };
        self.duplicate(&from, &to, &options).await?;
        self.holds(&to, &content).await
    }

    async fn missing_source(&self, rule: &str) -> Outcome {
        let (from, to) = (self.source(rule, "none")?, self.destination(rule, "none")?);
        self.fails(
            ErrorKind::NotFound,
            &from,
            &to,
            &DuplicateOptions::default(),
        )
        .await?;
        self.is_missing(&to).await
    }

    async fn changed_source(&self, rule: &str) -> Outcome {
        let (from, to) = (self.source(rule, "a")?, self.destination(rule, "a")?);
        self.write(&from, &bytes(7, 1000)).await?;
        let source = Some(self.stores.stat(&from).await.map_err(seen)?);
        self.write(&from, &bytes(8, 1000)).await?;
        // In this process's memory objects have no tags to pin them by.
        if from.provider() == Provider::Memory {
            return Ok(());
        }
        let options = DuplicateOptions {
            source,
            ..DuplicateOptions::default()
        };
        self.fails(ErrorKind::Conflict, &from, &to, &options)
            .await?;
        self.is_missing(&to).await
    }

    async fn onto_itself(&self, rule: &str) -> Outcome {
        let from = self.source(rule, "a")?;
        let content = bytes(9, 1000);
        self.write(&from, &content).await?;
        let options = DuplicateOptions {
            existing: Existing::Overwrite,
            ..DuplicateOptions::default()
        };
        self.fails(ErrorKind::Invalid, &from, &from, &options)
            .await?;
        self.holds(&from, &content).await
    }

    async fn independent(&self, rule: &str) -> Outcome {
        let (from, to) = (self.source(rule, "a")?, self.destination(rule, "a")?);
        let content = bytes(10, 1000);
        self.write(&from, &content).await?;
        self.duplicate(&from, &to, &DuplicateOptions::default())
            .await?;
        self.write(&from, &bytes(11, 1000)).await?;
        self.holds(&to, &content).await?;
        self.stores.delete(&from).await.map_err(seen)?;
        self.holds(&to, &content).await
    }

    async fn names(&self, rule: &str) -> Outcome {
        for (seed, name) in (0..).zip(NAMES) {
            let (from, to) = (self.source(rule, name)?, self.destination(rule, name)?);
            let content = bytes(seed, 100);
            self.write(&from, &content).await?;
            self.duplicate(&from, &to, &DuplicateOptions::default())
                .await?;
            self.holds(&to, &content).await?;
        }
        let folder = self.destination(rule, "x")?;
        let folder = folder.parent().ok_or("a location without a parent")?;
        let listed = self.stores.list(&folder).await.map_err(seen)?;
        let mut found: Vec<&str> = listed
            .iter()
            .filter_map(|(at, _)| folder.strip(at))
            .collect();
        found.sort_unstable();
        let mut wanted = NAMES;
        wanted.sort_unstable();
        match found == wanted {
            true => Ok(()),
            false => Err(format!("listed as {found:?}")),
        }
    }

    async fn race(&self, rule: &str) -> Outcome {
        let to = self.destination(rule, "prize")?;
        let mut racers = Vec::new();
        for n in 0..8 {
            let from = self.source(rule, &n.to_string())?;
            self.write(&from, &bytes(20 + n, 5000)).await?;
            racers.push((n, from));
        }
        let options = DuplicateOptions::default();
        let runs = racers.iter().map(|(n, from)| {
            let run = self.stores.duplicate(from, &to, &options);
            async move { (*n, run.await) }
        });
        let mut winners = Vec::new();
        for (n, result) in futures::future::join_all(runs).await {
            match result {
                Ok(_) => winners.push(n),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("a loser was told: {e}")),
            }
        }
        match winners[..] {
            [winner] => self.holds(&to, &bytes(20 + winner, 5000)).await,
            _ => Err(format!("{} of 8 won", winners.len())),
        }
    }

    async fn nothing_else(&self, rule: &str) -> Outcome {
        let (from, to) = (
            self.source(rule, "a")?,
            self.destination(rule, "deep/er/a")?,
        );
        self.write(&from, &bytes(12, 9 * MIB)).await?;
        self.duplicate(&from, &to, &DuplicateOptions::default())
            .await?;
        let folder = self.destination(rule, "x")?;
        let folder = folder.parent().ok_or("a location without a parent")?;
        let listed = self.stores.list(&folder).await.map_err(seen)?;
        match &listed[..] {
            [(at, stat)] if *at == to && stat.size == 9 * MIB as u64 => Ok(()),
            _ => Err(format!("listed: {listed:?}")),
        }
    }

    async fn clean_up(&self) -> Result<()> {
        for folder in [&self.from, &self.to] {
            for (at, _) in self.stores.list(folder).await? {
                self.stores.delete(&at).await?;
                self.stores.remove_empty_folders(&at, folder).await;
            }
            if let Some(parent) = folder.parent() {
                self.stores
                    .remove_empty_folders(&folder.join("x")?, &parent)
                    .await;
            }
        }
        Ok(())
    }
}

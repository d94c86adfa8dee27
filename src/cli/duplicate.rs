//! `forkpoint duplicate`.

use clap::ValueEnum;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Cancel;
use crate::report::{
    duplicate_json, duplicate_text, reused_json, reused_text, tree_json, tree_text,
};
use crate::store::{
    DuplicateOptions, Durability, Existing, Item, ItemOutcome, Level, Location, Preserve, Provider,
    Receipt, Stores, here,
};
use crate::tree::{Failure, TreeReport, TreeRequest, duplicate_tree, parse_names};

use super::ui::Ui;
use super::{Output, exit, interrupt, location};

/// Make a second, independent object with equal bytes, or a whole tree of them: server-side inside
/// one service, by the file system on local disk, streamed between different stores.
///
/// DESTINATION names the new object; one that ends in a slash, or that is only a bucket, names the folder that it is
/// put into under its own name. That is so on every store, whether the folder is there or not. With --recursive or
/// --from-list DESTINATION is a folder in any case.
///
/// Of many objects those that cannot be copied are reported, and the others are copied: exit code 6 if the same
/// command can go on, as when a name of the list is not there; 3 if an object that is not equal is in the way.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Args {
    /// The object, or with --recursive or --from-list the folder, to read.
    source: String,
    /// The object or folder to write; with a slash at its end a folder.
    destination: String,
    /// All objects below SOURCE.
    #[arg(long, short)]
    recursive: bool,
    /// The objects below SOURCE that FILE names, one a line (`-`: standard input).
    #[arg(long, value_name = "FILE", conflicts_with = "recursive")]
    from_list: Option<String>,
    /// Replace objects that are already there; without this equal ones are left, and one that is not
    /// equal is refused (exit 3).
    #[arg(long)]
    overwrite: bool,
    /// What to keep besides the bytes, where the service does not decide it.
    #[arg(long, value_enum, default_value_t = Kept::All)]
    preserve: Kept,
    /// How sure to be of the result. For one object the default is `none`: the answer of the
    /// service is read to its end all the same.
    #[arg(long, value_enum)]
    verify: Option<Sure>,
    /// Requests under way at once to a store, and objects on local disk. Left out: learned from the
    /// store's answers, up to 256.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,
    /// S3 objects from this size on are copied in parts, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    split_at: u64,
    /// Size of a part, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    part_size: u64,
    /// Copy S3 objects in the parts they were written in, so that the ETags are comparable.
    #[arg(long)]
    keep_layout: bool,
    /// On local disk give the same file a second name. The two are then one file, not independent.
    #[arg(long)]
    hard_link: bool,
    /// On local disk share blocks with the source, or fail where the file system cannot.
    #[arg(long, conflicts_with = "hard_link")]
    reflink_only: bool,
    /// Do not wait until local files would survive a loss of power.
    #[arg(long)]
    no_sync: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kept {
    /// Headers, metadata, tags, storage class, encryption.
    All,
    /// Headers and metadata.
    Metadata,
    /// Only the bytes.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sure {
    /// The service's word.
    None,
    /// A listing shows the right size.
    Size,
    /// Equal hashes; where there are none, equal contents.
    Checksum,
    /// Equal contents.
    Content,
}

impl Sure {
    fn level(self) -> Level {
        match self {
            Sure::None => Level::None,
            Sure::Size => Level::Size,
            Sure::Checksum => Level::Checksum,
            Sure::Content => Level::Content,
        }
    }
}

impl Args {
    /// Requests of our own at once, where the user limits them.
    pub(super) fn ceiling(&self) -> Option<usize> {
        self.concurrency.map(usize::from)
    }

    /// One object, not many.
    pub(super) fn is_single(&self) -> bool {
        !self.recursive && self.from_list.is_none()
    }

    fn places(&self) -> Result<(Location, Location)> {
        Ok((
            location::parse(&self.source)?,
            location::parse(&self.destination)?,
        ))
    }

    fn options(&self) -> DuplicateOptions {
        const MIB: u64 = 1024 * 1024;
        DuplicateOptions {
            existing: if self.overwrite {
                Existing::Overwrite
            } else {
                Existing::Refuse
            },
            preserve: match self.preserve {
                Kept::All => Preserve::ALL,
                Kept::Metadata => Preserve::METADATA,
                Kept::None => Preserve::NONE,
            },
            split_at: self.split_at.saturating_mul(MIB),
            part_size: self.part_size.saturating_mul(MIB),
            keep_layout: self.keep_layout,
            hard_link: self.hard_link,
            reflink_only: self.reflink_only,
            durability: if self.no_sync {
                Durability::Never
            } else {
                Durability::Each
            },
            ..DuplicateOptions::default()
        }
    }
}

/// One object.
pub(super) async fn run(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let (source, destination) = args.places()?;
    let destination = object_to_write(&args.destination, destination, &source)?;
    one(args, source, destination, stores, ui).await
}

/// A tree or a list.
pub(super) async fn run_many(args: &Args, stores: &Stores, ui: &Ui) -> Result<Output> {
    let (source, destination) = args.places()?;
    let names = match args.from_list.as_deref() {
        Some(file) => Some(read_names(file)?),
        None => None,
    };
    let request = TreeRequest {
        source,
        destination,
        names,
        duplicate: args.options(),
        objects_at_once: args.ceiling(),
        verify: args.verify.map_or(Level::Size, Sure::level),
    };
    tree(&request, stores, ui).await
}

/// The object that a single copy writes: what was named, or, in a folder that was named, what is called as the
/// source. Only the spelling counts, so that the same command does the same on every store and at every time.
fn object_to_write(typed: &str, named: Location, source: &Location) -> Result<Location> {
    let last = typed.rsplit(['/', '\\']).next().unwrap_or_default();
    if matches!(last, "" | "." | "..") || named.key().is_empty() {
        return match source.name() {
            "" => Err(Error::invalid("name the object to read, not only its bucket").at(source)),
            name => Ok(named.child(name)),
        };
    }
    if named.local_path().is_some_and(|p| p.is_dir()) {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "a folder is here, and this would be the name of the object",
        )
        .during("write")
        .at(&named)
        .hint(format!(
            "write {typed}/ with a slash at its end to copy into the folder, or name another object"
        )));
    }
    Ok(named)
}

/// One object, large or small: as a tree of one name, so that it is resumed as a tree is.
async fn one(
    args: &Args,
    source: Location,
    destination: Location,
    stores: &Stores,
    ui: &Ui,
) -> Result<Output> {
    let journal_root = destination.parent().ok_or_else(|| {
        Error::invalid("name the object to write, not only its bucket").at(&destination)
    })?;
    if let Some(receipt) = at_once(args, &source, &destination, stores).await? {
        return told(args, &receipt, stores).await;
    }
    let stat = match stores.stat(&source).await {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            // Some services do not say which of the two is missing.
            stores.check_bucket(&source).await?;
            return Err(e.hint("of a folder, duplicate all objects with --recursive"));
        }
        other => other?,
    };
    let mut options = args.options();
    let cancel = Cancel::default();
    options.cancel = cancel.clone();
    let choice = stores.method(&source, &destination, stat.size)?;
    // Only a copy of many requests has anything to remember.
    let journal =
        match choice.method == crate::store::Method::S3PartCopy || stat.size >= options.split_at {
            true => Some(std::sync::Arc::new(crate::tree::journal_of(
                stores,
                &journal_root,
                &source,
                &destination,
            ))),
            false => None,
        };
    if let Some(journal) = &journal {
        options.log = std::sync::Arc::clone(journal) as _;
    }
    use crate::progress::Progress;
    ui.begin("duplicating", 1, stat.size);
    let watch = tokio::spawn(interrupt::stop_on_interrupt(cancel));
    let item = Item {
        source,
        destination,
        stat,
        existing: None,
    };
    let result = stores.duplicate_or_leave(&item, &options).await;
    watch.abort();
    ui.end();
    let outcome = result
        .map_err(interrupt::say_how_to_go_on)
        .map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => e.hint("--overwrite replaces it"),
            ErrorKind::Refused => {
                Error::new(e.kind(), e.to_string()).hint("it was left; --overwrite replaces it")
            }
            _ => e,
        })?;
    if let Some(journal) = &journal {
        let earlier = matches!(outcome, ItemOutcome::Reused);
        journal.finish(earlier).await?;
    }
    match outcome {
        ItemOutcome::Copied(receipt) => told(args, &receipt, stores).await,
        // Its content was compared, which is more than any level asks for.
        ItemOutcome::Reused => Ok(Output {
            text: reused_text(&item),
            json: reused_json(&item),
            svg: None,
            code: exit::DONE,
        }),
        ItemOutcome::Failed(e) => Err(e),
    }
}

/// A local file whose blocks can be shared is there before a thread for copying has started. `None` for all
/// others, and for what the usual way tells better.
async fn at_once(
    args: &Args,
    source: &Location,
    destination: &Location,
    stores: &Stores,
) -> Result<Option<Receipt>> {
    let local = [source, destination].map(Location::provider) == [Provider::Local; 2];
    if !local || args.hard_link {
        return Ok(None);
    }
    let options = DuplicateOptions {
        reflink_only: true,
        ..args.options()
    };
    match here(stores.duplicate(source, destination, &options)).await {
        Ok(receipt) => Ok(Some(receipt)),
        Err(e) => match e.kind() {
            ErrorKind::Unsupported if args.reflink_only => Err(e),
            ErrorKind::Unsupported | ErrorKind::NotFound | ErrorKind::AlreadyExists => Ok(None),
            _ => Err(e),
        },
    }
}

/// What was done, verified as far as was asked for.
async fn told(args: &Args, receipt: &Receipt, stores: &Stores) -> Result<Output> {
    let level = args.verify.map_or(Level::None, Sure::level);
    if level > Level::None {
        let there = stores.stat(&receipt.destination).await?;
        let equal = there.size == receipt.bytes
            && (level == Level::Size || stores.prove(receipt, level).await?.is_some());
        if !equal {
            return Err(Error::corrupt("the duplicate is not equal to its source")
                .during("verify")
                .at(&receipt.destination));
        }
    }
    Ok(Output {
        text: duplicate_text(receipt),
        json: duplicate_json(receipt),
        svg: None,
        code: exit::DONE,
    })
}

async fn tree(request: &TreeRequest, stores: &Stores, ui: &Ui) -> Result<Output> {
    let cancel = Cancel::default();
    let watch = tokio::spawn(interrupt::stop_on_interrupt(cancel.clone()));
    let result = duplicate_tree(stores, request, ui, &cancel).await;
    watch.abort();
    let report = result.map_err(interrupt::say_how_to_go_on)?;
    Ok(Output {
        text: tree_text(request, &report),
        json: tree_json(request, &report),
        svg: None,
        code: code(&report),
    })
}

/// What failed for a reason that may pass, and what was not there, not allowed or nothing to copy (a pipe) while others
/// were done, the same command can go on with: resumable. Else what the first other failure gives.
fn code(report: &TreeReport) -> u8 {
    let kinds = || report.failures.iter().map(|f| f.error.kind());
    let lasting = |f: &&Failure| !interrupt::may_go_on(f.error.kind()) && !f.is_absent();
    if let Some(first) = report.failures.iter().find(lasting) {
        return exit::code(&first.error);
    }
    let some_done = report.copied + report.reused > 0;
    match report.failures.is_empty() {
        true => exit::DONE,
        false if some_done || kinds().any(interrupt::may_go_on) => exit::RESUMABLE,
        false => exit::FAILED,
    }
}

fn read_names(file: &str) -> Result<Vec<String>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes),
        file => std::fs::File::open(file).and_then(|mut f| f.read_to_end(&mut bytes)),
    };
    read.map_err(|e| {
        Error::new(ErrorKind::NotFound, e.to_string())
            .during("read")
            .at(file)
    })?;
    parse_names(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_names_the_folder_on_every_store() {
        let source = Location::parse("s3://from/deep/x").unwrap();
        let write = |typed: &str| {
            let named = Location::parse(typed).unwrap();
            let to = object_to_write(typed, named, &source);
            to.map(|to| to.to_string())
        };
        for (typed, written) in [
            ("s3://b/new", "s3://b/new"),
            ("s3://b/new/", "s3://b/new/x"),
            ("s3://b", "s3://b/x"),
            ("s3://b/", "s3://b/x"),
            ("gs://b/a/.", "gs://b/a/x"),
            ("az://c/a/b/..", "az://c/a/x"),
            ("/nowhere/new/", "file:/nowhere/new/x"),
            ("/nowhere/new", "file:/nowhere/new"),
        ] {
            assert_eq!(write(typed).unwrap(), written, "{typed}");
        }
        // A folder that is there is never the name of an object.
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().to_str().unwrap();
        let e = write(there).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
        assert!(
            e.next_step().unwrap().contains(&format!("{there}/ ")),
            "{e:?}"
        );
        assert_eq!(
            write(&format!("{there}/")).unwrap(),
            format!("file:{there}/x")
        );
        let bucket = Location::parse("s3://from").unwrap();
        assert!(object_to_write("s3://b/", Location::parse("s3://b").unwrap(), &bucket).is_err());
    }

    #[test]
    fn the_exit_code_says_whether_the_same_command_can_go_on() {
        let report = |copied, kinds: &[ErrorKind]| TreeReport {
            copied,
            failures: kinds
                .iter()
                .map(|kind| Failure {
                    destination: Location::parse("s3://b/x").unwrap(),
                    error: Error::new(*kind, "why"),
                })
                .collect(),
            ..TreeReport::default()
        };
        use ErrorKind::{AlreadyExists, Corrupt, NotFound, Refused, Unavailable};
        for (copied, kinds, expected) in [
            (1, &[][..], exit::DONE),
            (1, &[NotFound], exit::RESUMABLE),
            (0, &[NotFound], exit::FAILED),
            (0, &[NotFound, Unavailable], exit::RESUMABLE),
            (1, &[NotFound, Refused], exit::REFUSED),
            (1, &[AlreadyExists, Unavailable], exit::REFUSED),
            (1, &[Corrupt], exit::DAMAGED),
        ] {
            assert_eq!(code(&report(copied, kinds)), expected, "{copied} {kinds:?}");
        }
    }
}

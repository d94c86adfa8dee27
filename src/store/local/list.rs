//! What lies below a folder of the local file system.

use std::fs;
use std::io;

use crate::error::{Error, ErrorKind, Result};

use super::super::OWN_FOLDER;
use super::super::location::Location;
use super::super::stat::Stat;
use super::{from_io, path_of, stat_of};

/// The objects below `folder`: location, size and tag of each. An error if anything below it cannot be listed.
pub(crate) fn list(folder: &Location) -> Result<Vec<(Location, Stat)>> {
    list_past(folder, &mut |_, e| Err(e))
}

/// As [`list`], going on past what cannot be listed if `meet`, which is told of it, lets it.
pub(crate) fn list_past(
    folder: &Location,
    meet: &mut dyn FnMut(Location, Error) -> Result<()>,
) -> Result<Vec<(Location, Stat)>> {
    let mut found = Vec::new();
    let mut pending = vec![folder.clone()];
    while let Some(folder) = pending.pop() {
        let entries = match fs::read_dir(path_of(&folder)) {
            Ok(entries) => entries,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            Err(e) => {
                let e = from_io(e, "list", &folder);
                meet(folder, e)?;
                continue;
            }
        };
        let mut own = None;
        for entry in entries {
            // The rest of the folder is not seen either.
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    meet(folder.clone(), from_io(e, "list", &folder))?;
                    break;
                }
            };
            match listed(&folder, &entry) {
                Ok(None) => {}
                Ok(Some(Listed::File(at, stat))) => found.push((at, stat)),
                Ok(Some(Listed::Folder(at))) => match at.name() {
                    OWN_FOLDER => own = Some(at),
                    _ => pending.push(at),
                },
                Err((at, e)) => meet(at, e)?,
            }
        }
        // Taken next, as services list it before what lies beside it: notes of what is under way must be seen
        // before the commit object that makes them superfluous is looked for.
        pending.extend(own);
    }
    Ok(found)
}

enum Listed {
    File(Location, Stat),
    Folder(Location),
}

/// What an entry of `folder` is; nothing if it has gone since the folder was read.
fn listed(
    folder: &Location,
    entry: &fs::DirEntry,
) -> std::result::Result<Option<Listed>, (Location, Error)> {
    let unsupported = |at: Location, what: String| {
        let e = Error::new(ErrorKind::Unsupported, what)
            .during("list")
            .at(&at);
        Err((at, e))
    };
    let name = match entry.file_name().into_string() {
        Ok(name) => name,
        Err(name) => {
            let shown = folder.child(&name.to_string_lossy());
            return unsupported(shown, format!("the file name {name:?} is not UTF-8"));
        }
    };
    let at = folder.with_key(format!("{}/{name}", folder.key()).trim_start_matches('/'));
    match entry.file_type() {
        Ok(kind) if kind.is_dir() => return Ok(Some(Listed::Folder(at))),
        Ok(_) => {}
        Err(e) => {
            let e = from_io(e, "list", &at);
            return Err((at, e));
        }
    }
    match fs::metadata(path_of(&at)) {
        Ok(meta) if meta.is_file() => Ok(Some(Listed::File(at, stat_of(&meta)))),
        // A link to a folder, a pipe, a socket: a listing without it would be incomplete.
        Ok(_) => unsupported(
            at,
            "a link to a folder, or neither file nor folder: it cannot be listed".into(),
        ),
        // What it leads to may be away, such as a disk that is not mounted: a listing without it would be
        // incomplete.
        Err(e)
            if e.kind() == io::ErrorKind::NotFound
                && fs::symlink_metadata(path_of(&at)).is_ok() =>
        {
            unsupported(
                at,
                "a symbolic link that leads nowhere: it cannot be listed".into(),
            )
        }
        // Removed since the folder was read.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => {
            let e = from_io(e, "list", &at);
            Err((at, e))
        }
    }
}

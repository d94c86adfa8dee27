//! What stands in the way of a new file: a file where a folder must be, or a folder that has its name.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

use super::super::location::Location;
use super::{from_io, path_of};

/// Makes the folders above the file `at`.
pub(super) fn make_folder(folder: &Path, at: &Location) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => below_a_file(folder, at),
        _ => from_io(e, "write", at),
    })
}

/// The first link among the folders that lie below `root` and above `at`: what is written through it lands
/// elsewhere.
pub(crate) fn link_on_the_way(root: &Location, at: &Location) -> Option<Location> {
    let mut folder = at.parent();
    let mut link = None;
    while let Some(next) = folder.filter(|f| f != root && root.contains(f)) {
        if fs::symlink_metadata(path_of(&next)).is_ok_and(|m| m.is_symlink()) {
            link = Some(next.clone());
        }
        folder = next.parent();
    }
    link
}

/// The error for a file that shall lie below another one; `folder` cannot be made.
fn below_a_file(folder: &Path, at: &Location) -> Error {
    let mut there = folder
        .ancestors()
        .filter_map(|p| Some((p, fs::symlink_metadata(p).ok()?)));
    let message = match there.next() {
        Some((path, meta)) if meta.is_symlink() => {
            format!("{} is a link that leads to no folder", path.display())
        }
        Some((path, _)) => format!("{} is a file, not a folder", path.display()),
        None => "a part of this path is no folder".to_string(),
    };
    Error::new(ErrorKind::AlreadyExists, message)
        .during("write")
        .at(at)
        .hint("choose another destination, or move it away")
}

/// The error for a file that does not get its name. A folder that has it is never replaced, which the system
/// says in words that depend on the way.
pub(super) fn no_name(e: io::Error, operation: &'static str, at: &Location) -> Error {
    let taken = matches!(
        e.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory
    );
    match taken && fs::symlink_metadata(path_of(at)).is_ok_and(|m| m.is_dir()) {
        true => Error::new(ErrorKind::AlreadyExists, "a folder has this name")
            .during(operation)
            .at(at)
            .hint("choose another destination, or move the folder away")
            .caused_by(e),
        false => from_io(e, operation, at),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{link, put};
    use super::*;

    #[test]
    fn what_stands_in_the_way_is_named_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let root = Location::parse(dir.path().to_str().unwrap()).unwrap();
        let at = |name: &str| root.join(name).unwrap();
        put(&at("file"), b"x", true).unwrap();
        put(&at("folder/x"), b"x", true).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        let below_a_file = format!("{} is a file", dir.path().join("file").display());
        for (to, said) in [
            ("file/x", below_a_file.as_str()),
            ("file/deep/er/x", &below_a_file),
            ("dangling/x", "a link that leads to no folder"),
            ("folder", "a folder has this name"),
        ] {
            for create_only in [true, false] {
                let written = put(&at(to), b"y", create_only).map(drop);
                let linked = link(&at("file"), &at(to), create_only).map(drop);
                for result in [written, linked] {
                    let e = result.unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{to}: {e}");
                    assert!(e.to_string().contains(said), "{to}: {e}");
                    assert!(e.next_step().is_some(), "{to}: {e}");
                }
            }
        }
        assert_eq!(fs::read(dir.path().join("folder/x")).unwrap(), b"x");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}

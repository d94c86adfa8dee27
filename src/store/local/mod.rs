//! Local files: independent copies, published whole or not at all.
//!
//! object_store's local copy is a hard link and its staging files may stay behind, so files are
//! written here: into an unnamed file of the destination's folder (O_TMPFILE) that gets its name
//! when it is complete, or, where the file system has no such files, into a named temporary one.
//! Either way a reader sees the whole file or none, and what a killed process leaves is found
//! and overwritten by the next run.

mod list;
mod obstacle;
mod staging;

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

use super::duplicate::Copied;
use super::location::Location;
use super::method::Method;
use super::stat::Stat;

pub(crate) use list::{list, list_past};
pub(crate) use obstacle::link_on_the_way;
use obstacle::{make_folder, no_name};
use staging::temporary_name;

pub(crate) use staging::Staged;

const BUFFER_BYTES: usize = 1024 * 1024;
/// Up to here one read and one write cost less than asking the kernel for a reflink or a copy, in bytes.
const SMALL_BYTES: u64 = 32 * 1024;

/// Our error for one of the file system's.
pub(crate) fn from_io(e: io::Error, operation: &'static str, at: &Location) -> Error {
    if let Some(full) = Error::of_full(&e) {
        return full.during(operation).at(at).caused_by(e);
    }
    let kind = match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::IsADirectory => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    let message = match kind {
        ErrorKind::NotFound => "no such file".to_string(),
        ErrorKind::AlreadyExists => "a file is already there".to_string(),
        ErrorKind::Denied => format!("permission denied ({e})"),
        _ => e.to_string(),
    };
    Error::new(kind, message)
        .during(operation)
        .at(at)
        .caused_by(e)
}

pub(crate) fn path_of(at: &Location) -> PathBuf {
    PathBuf::from(format!("/{}", at.key()))
}

/// Size and tag of a regular file. One system call.
pub(crate) fn stat(at: &Location) -> Result<Stat> {
    let meta = fs::metadata(path_of(at)).map_err(|e| from_io(e, "look at", at))?;
    if !meta.is_file() {
        return Err(
            Error::new(ErrorKind::NotFound, "this is a folder, not a file")
                .during("look at")
                .at(at),
        );
    }
    Ok(stat_of(&meta))
}

fn stat_of(meta: &fs::Metadata) -> Stat {
    Stat {
        size: meta.len(),
        tag: Some(tag_of(meta)),
        modified: meta
            .modified()
            .ok()
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .and_then(|d| u64::try_from(d.as_millis()).ok()),
        ..Stat::default()
    }
}

/// Changes when the file's content does: inode, modification time, size.
fn tag_of(meta: &fs::Metadata) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        format!(
            "{:x}-{:x}.{:x}-{:x}",
            meta.ino(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.len()
        )
    }
    #[cfg(not(unix))]
    {
        let time = meta
            .modified()
            .ok()
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_nanos());
        format!("{time:x}-{:x}", meta.len())
    }
}

/// The whole of a file of at most `limit` bytes.
pub(crate) fn read(at: &Location, limit: u64) -> Result<Bytes> {
    let size = stat(at)?.size;
    if size > limit {
        return Err(Error::invalid(format!(
            "{size} bytes, more than the {limit} that are read at most"
        ))
        .during("read")
        .at(at));
    }
    fs::read(path_of(at))
        .map(Bytes::from)
        .map_err(|e| from_io(e, "read", at))
}

/// Bytes `start..end` of a file, or fewer where it ends before.
pub(crate) fn read_range(at: &Location, start: u64, end: u64) -> Result<Bytes> {
    let wanted = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
    let mut bytes = Vec::with_capacity(wanted);
    read_range_into(at, start, end, &mut bytes)?;
    Ok(bytes.into())
}

/// The same, behind what `into` holds already.
pub(crate) fn read_range_into(
    at: &Location,
    start: u64,
    end: u64,
    into: &mut Vec<u8>,
) -> Result<()> {
    let fail = |e| from_io(e, "read", at);
    let mut file = File::open(path_of(at)).map_err(fail)?;
    file.seek(io::SeekFrom::Start(start)).map_err(fail)?;
    let wanted = end.saturating_sub(start);
    file.take(wanted).read_to_end(into).map_err(fail)?;
    Ok(())
}

pub(crate) fn delete(at: &Location) -> Result<()> {
    fs::remove_file(path_of(at)).map_err(|e| from_io(e, "delete", at))
}

/// Removes `folder` if it is empty, and then each empty folder above it, up to and without `stop`.
pub(crate) fn remove_empty_folders(folder: &Location, stop: &Location) {
    let mut next = Some(folder.clone());
    while let Some(folder) = next.take() {
        if folder == *stop || !stop.contains(&folder) || fs::remove_dir(path_of(&folder)).is_err() {
            return;
        }
        next = folder.parent();
    }
}

/// The place with symbolic links followed, as far as it exists.
pub(crate) fn real(at: &Location) -> Location {
    let path = path_of(at);
    let mut tail = PathBuf::new();
    for ancestor in path.ancestors() {
        if let Ok(real) = fs::canonicalize(ancestor) {
            let whole = real.join(&tail);
            return match whole.to_str() {
                Some(text) => at.with_key(text.trim_matches('/')),
                None => at.clone(),
            };
        }
        if let Some(name) = ancestor.file_name() {
            tail = Path::new(name).join(&tail);
        }
    }
    at.clone()
}

/// Are they one file, by whatever names? Two hard links are two files here: each can be replaced.
pub(crate) fn is_same(one: &Location, other: &Location) -> bool {
    if path_of(one) == path_of(other) {
        return true;
    }
    let ids = |at| {
        let meta = fs::metadata(path_of(at)).ok()?;
        Some(identity(&meta))
    };
    match ids(other) {
        Some(id) if Some(id) == ids(one) => real(one) == real(other),
        _ => false,
    }
}

#[cfg(unix)]
fn identity(meta: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

/// Without such numbers every two files might be one.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}

/// Writes a small object whole.
pub(crate) fn put(at: &Location, bytes: &[u8], create_only: bool) -> Result<Stat> {
    let mut staged = Staged::begin(at)?;
    staged
        .file()
        .write_all(bytes)
        .map_err(|e| from_io(e, "write", at))?;
    staged.publish(at, create_only, true)
}

/// How a file may be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// As is quickest.
    Any,
    /// By sharing its blocks, or not at all.
    Reflink,
}

/// Makes an independent copy of a file.
pub(crate) fn copy(
    from: &Location,
    source_tag: Option<&str>,
    to: &Location,
    create_only: bool,
    sync: bool,
    how: How,
) -> Result<Copied> {
    let mut source = File::open(path_of(from)).map_err(|e| from_io(e, "read", from))?;
    let before = source.metadata().map_err(|e| from_io(e, "read", from))?;
    if !before.is_file() {
        return Err(Error::invalid("not a regular file").during("read").at(from));
    }
    let changed = || {
        Error::new(
            ErrorKind::Conflict,
            "the file changed since it was looked at",
        )
        .during("read")
        .at(from)
    };
    if source_tag.is_some_and(|tag| tag != tag_of(&before)) {
        return Err(changed());
    }
    // Before much is copied for nothing; the name is given to nobody's loss in any case.
    let small = before.len() <= SMALL_BYTES && how == How::Any;
    if create_only && !small && fs::symlink_metadata(path_of(to)).is_ok() {
        return Err(no_name(io::ErrorKind::AlreadyExists.into(), "write", to));
    }
    let mut staged = Staged::begin(to)?;
    let method = match !small && reflink(&source, staged.file()) {
        true => Method::LocalReflink,
        false if how == How::Reflink => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the file system does not share blocks between these files",
            )
            .during("write")
            .at(to));
        }
        false => {
            let copied = copy_bytes(&mut source, staged.file(), before.len())
                .map_err(|e| from_io(e, "write", to))?;
            if copied != before.len() {
                return Err(changed());
            }
            Method::LocalCopy
        }
    };
    let after = source.metadata().map_err(|e| from_io(e, "read", from))?;
    if tag_of(&after) != tag_of(&before) {
        return Err(changed());
    }
    let stat = staged.publish(to, create_only, sync)?;
    Ok(Copied::new(method, stat.tag))
}

/// Gives the file of `from` the second name `to`. The two are one file.
pub(crate) fn link(from: &Location, to: &Location, create_only: bool) -> Result<Copied> {
    let destination = path_of(to);
    if let Some(folder) = destination.parent() {
        make_folder(folder, to)?;
    }
    let fail = |e: io::Error| match e.kind() {
        io::ErrorKind::CrossesDevices => Error::new(
            ErrorKind::Unsupported,
            "a hard link cannot lead to another file system",
        )
        .during("link")
        .at(to),
        _ => no_name(e, "link", to),
    };
    if create_only {
        fs::hard_link(path_of(from), &destination).map_err(fail)?;
    } else {
        // What is there goes only once the new name is made.
        let temporary = temporary_name(&destination);
        let _ = fs::remove_file(&temporary);
        fs::hard_link(path_of(from), &temporary).map_err(fail)?;
        let renamed = fs::rename(&temporary, &destination);
        // Still there if the rename failed, or did nothing because both are one file already.
        let _ = fs::remove_file(&temporary);
        renamed.map_err(fail)?;
    }
    Ok(Copied::new(Method::LocalHardLink, stat(to)?.tag))
}

#[cfg(target_os = "linux")]
fn reflink(source: &File, destination: &File) -> bool {
    rustix::fs::ioctl_ficlone(destination, source).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn reflink(_: &File, _: &File) -> bool {
    false
}

/// Lets the kernel copy `size` bytes; reads and writes where it will not (other file system,
/// special file). Returns how many bytes there were.
fn copy_bytes(source: &mut File, destination: &mut File, size: u64) -> io::Result<u64> {
    let mut done = 0;
    #[cfg(target_os = "linux")]
    while done < size && size > SMALL_BYTES {
        let step = usize::try_from(size - done)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        match rustix::fs::copy_file_range(&*source, None, &*destination, None, step) {
            Ok(0) => break,
            Ok(n) => done += n as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done == 0 => break,
            Err(e) => return Err(e.into()),
        }
    }
    if done == size {
        return Ok(done);
    }
    if done > 0 {
        source.seek(io::SeekFrom::Start(done))?;
        destination.seek(io::SeekFrom::Start(done))?;
    }
    let left = usize::try_from(size - done).unwrap_or(BUFFER_BYTES);
    let mut buffer = vec![0; left.clamp(1, BUFFER_BYTES)];
    // A file that has grown since is found out by its times.
    while done < size {
        match source.read(&mut buffer)? {
            0 => break,
            n => {
                destination.write_all(buffer.get(..n).unwrap_or_default())?;
                done += n as u64;
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Location) {
        let dir = tempfile::tempdir().unwrap();
        let at = Location::parse(dir.path().to_str().unwrap()).unwrap();
        (dir, at)
    }

    #[test]
    fn notes_are_listed_before_what_they_are_about() {
        let (_dir, root) = folder();
        // Folders come in the order of the file system: enough of them that not all come after the notes.
        for job in ["a", "b"] {
            for n in 0..20 {
                put(&root.join(&format!("{job}/chk-{n}/x")).unwrap(), b"x", true).unwrap();
            }
            let note = root.join(&format!("{job}/.forkpoint/pins/chk-1/p.json"));
            put(&note.unwrap(), b"x", true).unwrap();
        }
        let names: Vec<String> = list(&root)
            .unwrap()
            .into_iter()
            .map(|(at, _)| root.strip(&at).unwrap().to_string())
            .collect();
        assert_eq!(names.len(), 42);
        for job in ["a/", "b/"] {
            let first = names.iter().find(|name| name.starts_with(job)).unwrap();
            assert!(first.contains("/.forkpoint/"), "{names:?}");
        }
    }

    #[test]
    fn a_copy_is_independent_of_its_source_and_leaves_no_other_name() {
        let (dir, root) = folder();
        let (a, b) = (root.join("a").unwrap(), root.join("sub/b#1").unwrap());
        put(&a, b"first", true).unwrap();
        for _ in 0..3 {
            copy(&a, None, &b, false, true, How::Any).unwrap();
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join("a"))
            .unwrap();
        file.write_all(b"FIRST").unwrap();
        assert_eq!(read(&b, 10).unwrap(), "first");
        assert_eq!(list(&root).unwrap().len(), 2);
    }

    #[test]
    fn create_only_refuses_and_keeps_what_is_there() {
        let (_dir, root) = folder();
        let (a, b) = (root.join("a").unwrap(), root.join("b").unwrap());
        put(&a, b"new", true).unwrap();
        put(&b, b"old", true).unwrap();
        assert_eq!(
            copy(&a, None, &b, true, true, How::Any).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            put(&b, b"new", true).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(read(&b, 10).unwrap(), "old");
    }

    #[test]
    fn a_source_that_is_not_the_one_looked_at_is_refused() {
        let (_dir, root) = folder();
        let (a, b) = (root.join("a").unwrap(), root.join("b").unwrap());
        put(&a, b"one", true).unwrap();
        let tag = stat(&a).unwrap().tag;
        put(&a, b"three", false).unwrap();
        let e = copy(&a, tag.as_deref(), &b, true, true, How::Any).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Conflict);
        assert!(stat(&b).is_err());
    }
}

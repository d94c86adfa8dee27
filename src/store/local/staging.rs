//! Files that nobody sees until they are whole: an unnamed file, or one with a temporary name, that gets its
//! own name at the end.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Result;

use super::super::location::Location;
use super::super::stat::Stat;
use super::obstacle::{make_folder, no_name};
use super::{from_io, path_of, tag_of};

/// How often a folder that has vanished is made again.
const TRIES: u32 = 8;

/// A file being written that nobody sees yet.
pub(crate) struct Staged {
    file: File,
    destination: PathBuf,
    /// The temporary name, where the file has one.
    named: Option<PathBuf>,
}

impl Staged {
    /// Starts a file that shall become `at`. Makes the folders above it.
    pub(crate) fn begin(at: &Location) -> Result<Staged> {
        let destination = path_of(at);
        let folder = destination.parent().unwrap_or(Path::new("/")).to_path_buf();
        let mut tries = 0;
        loop {
            // Mostly the folder is there.
            let mut file = unnamed(&folder);
            if file.is_none() {
                make_folder(&folder, at)?;
                file = unnamed(&folder);
            }
            let (file, named) = match file {
                Some(file) => (file, None),
                None => match named(&destination) {
                    Ok((file, name)) => (file, Some(name)),
                    // Somebody who tidied has removed the folder, which was empty for a moment.
                    Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                        tries += 1;
                        continue;
                    }
                    Err(e) => return Err(from_io(e, "write", at)),
                },
            };
            return Ok(Staged {
                file,
                destination,
                named,
            });
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, after making it durable if `sync`. Refuses an existing one if
    /// `create_only`.
    pub(crate) fn publish(mut self, at: &Location, create_only: bool, sync: bool) -> Result<Stat> {
        let fail = |e: io::Error| no_name(e, "write", at);
        if sync {
            self.file.sync_all().map_err(fail)?;
        }
        let stat = self.file.metadata().map_err(fail)?;
        match (self.named.clone(), create_only) {
            (Some(temporary), true) => {
                rename_onto_nothing(&temporary, &self.destination).map_err(fail)?;
            }
            (Some(temporary), false) => fs::rename(&temporary, &self.destination).map_err(fail)?,
            (None, true) => self.link(at, &self.destination)?,
            (None, false) => {
                let temporary = temporary_name(&self.destination);
                // A name that a killed process left behind is free to take.
                let _ = fs::remove_file(&temporary);
                self.link(at, &temporary)?;
                let renamed = fs::rename(&temporary, &self.destination);
                if renamed.is_err() {
                    let _ = fs::remove_file(&temporary);
                }
                renamed.map_err(fail)?;
            }
        }
        self.named = None;
        if sync && let Some(folder) = self.destination.parent() {
            // Without this the name may be lost with the power although the bytes are not.
            File::open(folder)
                .and_then(|f| f.sync_all())
                .map_err(fail)?;
        }
        Ok(Stat {
            size: stat.len(),
            tag: Some(tag_of(&stat)),
            ..Stat::default()
        })
    }
}

impl Staged {
    /// Gives the unnamed file a name. Its folder is made again if somebody who tidied has removed it meanwhile, which he
    /// may while it is empty.
    fn link(&self, at: &Location, name: &Path) -> Result<()> {
        let mut tries = 0;
        loop {
            match (link_unnamed(&self.file, name), name.parent()) {
                (Ok(()), _) => return Ok(()),
                (Err(e), Some(folder)) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                    tries += 1;
                    make_folder(folder, at)?;
                }
                (Err(e), _) => return Err(no_name(e, "write", at)),
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = self.named.take() {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A temporary name beside `destination`, the same at each run, so that nothing piles up.
pub(super) fn temporary_name(destination: &Path) -> PathBuf {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(destination.as_os_str().as_encoded_bytes());
    let short: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    destination.with_file_name(format!(".forkpoint-{short}.tmp"))
}

/// Makes the named temporary file, new and locked: a second writer of the same file finds it busy.
/// One that a killed process left is unlinked, never written into: it may by then be a second name
/// of a published file.
fn named(destination: &Path) -> io::Result<(File, PathBuf)> {
    let temporary = temporary_name(destination);
    let busy = || {
        io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process is writing this file",
        )
    };
    if let Ok(left) = File::open(&temporary) {
        left.try_lock().map_err(|_| busy())?;
        fs::remove_file(&temporary)?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&temporary)?;
    file.try_lock().map_err(|_| busy())?;
    Ok((file, temporary))
}

/// Gives `temporary` the name `destination`, unless something is there.
fn rename_onto_nothing(temporary: &Path, destination: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags};
        match rustix::fs::renameat_with(CWD, temporary, CWD, destination, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            // Not offered by every file system.
            Err(
                rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP,
            ) => {}
            Err(e) => return Err(e.into()),
        }
    }
    fs::hard_link(temporary, destination)?;
    fs::remove_file(temporary)
}

#[cfg(target_os = "linux")]
fn unnamed(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    // Not offered by every file system (NFS, older overlays): the caller then uses a name.
    rustix::fs::open(folder, flags, mode).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_: &Path) -> Option<File> {
    None
}

#[cfg(target_os = "linux")]
fn link_unnamed(file: &File, destination: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    // Kernels before 6.10 allow it to the administrator only.
    static BY_DESCRIPTOR: AtomicBool = AtomicBool::new(true);
    if BY_DESCRIPTOR.load(Ordering::Relaxed) {
        match rustix::fs::linkat(file, "", CWD, destination, AtFlags::EMPTY_PATH) {
            // Also when the destination's folder has gone: the other way then says so.
            Err(rustix::io::Errno::NOENT) => BY_DESCRIPTOR.store(false, Ordering::Relaxed),
            other => return Ok(other?),
        }
    }
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(
        CWD,
        itself.as_str(),
        CWD,
        destination,
        AtFlags::SYMLINK_FOLLOW,
    )?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn link_unnamed(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::{list, put};
    use super::*;

    /// The way of file systems that have no unnamed files.
    #[test]
    fn a_temporary_file_that_was_left_is_never_written_into() {
        let dir = tempfile::tempdir().unwrap();
        let root = Location::parse(dir.path().to_str().unwrap()).unwrap();
        let at = root.join("published").unwrap();
        put(&at, b"whole", true).unwrap();
        // As after a kill between the two names.
        let temporary = temporary_name(&path_of(&at));
        fs::hard_link(path_of(&at), &temporary).unwrap();
        let (mut file, named) = named(&path_of(&at)).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(fs::read(path_of(&at)).unwrap(), b"whole");
        // While it is being written nobody else can.
        assert!(super::named(&path_of(&at)).is_err());
        assert!(rename_onto_nothing(&named, &path_of(&at)).is_err());
        rename_onto_nothing(&named, &dir.path().join("other")).unwrap();
        assert_eq!(list(&root).unwrap().len(), 2);
    }
}

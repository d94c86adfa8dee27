//! File systems other than the one of the temporary folder. Needs root, loop devices and the tools of the
//! file systems; says what it leaves out without them.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A file system in a file, mounted until dropped.
pub struct Mounted {
    pub folder: PathBuf,
    _dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(make: &[&str]) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let folder = dir.path().join("mounted");
        std::fs::create_dir(&folder).unwrap();
        std::fs::File::create(&image)
            .unwrap()
            .set_len(600 << 20)
            .unwrap();
        let run = |command: &mut Command| {
            let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        let made = run(Command::new(make[0]).args(&make[1..]).arg(&image))
            && run(Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&folder));
        if !made {
            // Not by a macro: the test harness would swallow it.
            let _ = writeln!(
                std::io::stderr(),
                "left out: {} cannot be made and mounted here",
                make[0]
            );
            return None;
        }
        Some(Mounted { folder, _dir: dir })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

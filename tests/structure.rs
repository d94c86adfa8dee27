//! The house stays in order: who may use whom, and how long a file may be.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

/// Folders and files of `src/` from the ground up; each may use those of lower floors, and itself.
const FLOORS: &[(u32, &[&str])] = &[
    (0, &["error"]),
    (1, &["clock", "progress"]),
    (2, &["store"]),
    (3, &["blob", "snapshot"]),
    (4, &["restore", "verify"]),
    (5, &["ownership"]),
    (6, &["fork", "tree", "writer"]),
    (7, &["report"]),
    (8, &["cli"]),
];

/// A file that grows past this is asking to be split by topic.
const LONGEST_FILE_LINES: usize = 650;

fn floor(module: &str) -> Option<u32> {
    FLOORS
        .iter()
        .find(|(_, names)| names.contains(&module))
        .map(|(floor, _)| *floor)
}

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut pending = vec![root.clone()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 30);
    found
}

#[test]
fn modules_use_only_what_is_below_them() {
    for (name, text) in sources() {
        let module = name.split(['/', '.']).next().unwrap();
        if ["lib", "bin"].contains(&module) {
            continue;
        }
        let own = floor(module).unwrap_or_else(|| panic!("{name}: no floor is given for {module}"));
        for (number, line) in text.lines().enumerate() {
            for used in line.split("crate::").skip(1) {
                let used: String = used
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                let Some(theirs) = floor(&used) else { continue };
                assert!(
                    theirs < own || used == module,
                    "{name}:{}: {module} must not use {used}",
                    number + 1
                );
            }
        }
    }
}

#[test]
fn only_the_store_names_object_store() {
    for (name, text) in sources() {
        let module = name.split(['/', '.']).next().unwrap();
        let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        if module != "store" {
            for line in code {
                assert!(!line.contains("object_store::"), "{name}: {line}");
            }
        }
    }
}

#[test]
fn no_source_file_is_longer_than_a_reader_can_bear() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(
            lines <= LONGEST_FILE_LINES,
            "{name} has {lines} lines: split it by topic"
        );
    }
}

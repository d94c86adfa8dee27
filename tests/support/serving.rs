//! `forkpoint blob serve` as a process, and the verbs that talk to it.

// Each test uses some of it.
#![allow(dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// A server. Killed when dropped.
pub struct Serving {
    child: Child,
    pub url: String,
    /// What it has said since it listens.
    pub said: Arc<Mutex<String>>,
}

impl Serving {
    pub fn start(dir: &Path) -> Serving {
        Serving::start_at(&dir.join("data"), &dir.join("ha"))
    }

    pub fn start_at(data: &Path, ha: &Path) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .args([
                "blob",
                "serve",
                "--bind",
                "127.0.0.1:0",
                "--watch-every",
                "100ms",
            ])
            .arg("--data")
            .arg(data)
            .arg("--ha")
            .arg(ha)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("it ended: {said}"))
                .unwrap();
            if let Some(url) = line.strip_prefix("listening on ") {
                break url.to_string();
            }
            said.push_str(&line);
        };
        let said = Arc::new(Mutex::new(String::new()));
        let more = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                more.lock().unwrap().push_str(&line);
            }
        });
        Serving { child, url, said }
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .arg("blob")
            .args(args)
            .env("FORKPOINT_BLOB_SERVER", &self.url)
            .output()
            .unwrap()
    }

    pub fn json(&self, args: &[&str]) -> (i32, Value) {
        let output = self.run(&[args, &["--format", "json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let document = serde_json::from_slice(&output.stdout);
        let document = document.unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"));
        (output.status.code().unwrap(), document)
    }

    pub fn text(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        let (out, err) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err);
        (output.status.code().unwrap(), text)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a verb that needs no server in a folder.
pub fn alone(folder: &Path, args: &[&str]) -> (i32, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .arg("blob")
        .args(args)
        .current_dir(folder)
        .env_remove("FORKPOINT_BLOB_SERVER")
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // What should end and does not must not hold up the test.
    let begun = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed().as_secs() > 60 {
            child.kill().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

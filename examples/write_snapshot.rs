//! Writes the files of a folder as one snapshot of one subtask, and says how long it took: the smallest use of
//! the snapshot writer, and what `benches/peers/writer.py` measures.
//!
//! `cargo run --release --example write_snapshot FOLDER URL [FILES_AT_ONCE [PART_MIB]]`

// An example talks to a person.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use forkpoint::store::{Location, Stores, UploadOptions};
use forkpoint::writer::{
    Details, Job, JobDescription, JobOptions, Start, State, SubtaskWriter, WriteOptions,
};
use forkpoint::{Error, ErrorKind, Result};

const USAGE: &str = "usage: write_snapshot FOLDER URL [FILES_AT_ONCE [PART_MIB]]";

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(folder), Some(url)) = (args.first(), args.get(1)) else {
        return Err(Error::invalid(USAGE));
    };
    let number = |n: usize, default: u64| match args.get(n).map(|a| a.parse::<u32>()) {
        None => Ok(default),
        Some(Ok(number)) => Ok(u64::from(number)),
        Some(Err(_)) => Err(Error::invalid(USAGE)),
    };
    let mut options = WriteOptions::default();
    options.files_at_once = number(2, options.files_at_once as u64)? as usize;
    options.upload = UploadOptions {
        part_size: number(3, options.upload.part_size >> 20)? << 20,
        ..options.upload
    };

    let began = Instant::now();
    let stores = Stores::from_env();
    let job = JobDescription::new("files").operator("files", 1);
    let home = Location::parse(url)?;
    let (job, _) = Job::start(
        &stores,
        &home,
        &job,
        &Start::newest(),
        JobOptions::default(),
    )
    .await?;
    let mut attempt = job.checkpoint().await?;
    let mut state = State::shard("files");
    let failed = |e: std::io::Error| Error::new(ErrorKind::NotFound, e.to_string()).at(folder);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.path().is_file() {
            return Err(Error::invalid("this is no file").at(entry.path().display()));
        }
        state = state.exclusive(entry.file_name().to_string_lossy(), entry.path());
    }
    let order = attempt.order("files", 0)?;
    let writer = SubtaskWriter::new(&stores, order).with_options(options);
    let ack = writer.write(vec![state]).await?;
    attempt.acknowledge(ack)?;
    let done = attempt.commit(&Details::default()).await?.committed()?;
    println!(
        "{}: {} files, {} bytes, {:.3} s",
        done.directory,
        done.manifest.files.len(),
        done.uploaded_bytes,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

//! How fast a large `_metadata` file is decoded and encoded, and how much memory that takes.
//!
//! `cargo bench --bench flink_metadata [-- MEBIBYTES]`. The file is that of a job with incremental
//! checkpoints: a thousand subtasks, each with about a thousand shared files.

// A bench program reports on the terminal, and has nobody to return errors to.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::time::{Duration, Instant};

use forkpoint::snapshot::flink::{self, Location, NewPath};

const ROUNDS: usize = 9;
const SHARED_FILES: usize = 1000;

fn main() {
    // Cargo passes `--bench`.
    let mebibytes = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(100);
    let file = generate(mebibytes << 20);
    let size = file.len() as f64;
    let before = peak_memory();

    let metadata = flink::decode(&file).unwrap();
    let copy = metadata.encode().unwrap();
    let peak = peak_memory();
    assert!(copy == file);
    let mut handles = 0_u64;
    metadata.walk(&mut |_| handles += 1);
    drop((metadata, copy));

    let mut times: [Vec<Duration>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let metadata = flink::decode(&file).unwrap();
        let decoded = start.elapsed();
        let copy = metadata.encode().unwrap();
        let both = start.elapsed();
        assert_eq!(copy.len(), file.len());
        drop(copy);

        let start = Instant::now();
        let mut bytes = 0_u64;
        metadata.walk(&mut |reference| {
            if let Location::Absolute { size, .. } = reference.location {
                bytes += u64::try_from(size).unwrap_or(0);
            }
        });
        let walked = start.elapsed();
        assert!(bytes > 0);

        let start = Instant::now();
        let moved = metadata
            .encode_with(&mut |reference| match reference.location {
                Location::Absolute { path, .. } => {
                    let path = path.to_str()?.replacen("s3://bucket", "s3://forked", 1);
                    Ok(Some(NewPath::Absolute(path)))
                }
                _ => Ok(None),
            })
            .unwrap();
        let rewritten = start.elapsed();
        assert_eq!(moved.len(), file.len());
        for (list, time) in times
            .iter_mut()
            .zip([decoded, both - decoded, both, walked, rewritten])
        {
            list.push(time);
        }
    }

    println!("file: {:.1} MB, {handles} handles", size / 1e6);
    for (what, list) in ["decode", "encode", "decode + encode", "walk", "rewrite"]
        .iter()
        .zip(&mut times)
    {
        list.sort();
        let rate = |time: Duration| size / 1e6 / time.as_secs_f64();
        println!(
            "{what}: median {:.0} MB/s, best {:.0}, worst {:.0}",
            rate(list[ROUNDS / 2]),
            rate(list[0]),
            rate(list[ROUNDS - 1])
        );
    }
    if let (Some(before), Some(peak)) = (before, peak) {
        println!(
            "peak memory of file, tree and copy: {:.2} times the file (the file alone: {:.2})",
            peak / size,
            before / size
        );
    }
}

/// The most memory this process had, in bytes.
fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// Metadata of version 4 with one operator, as long as `wanted` bytes or a little more.
fn generate(wanted: usize) -> Vec<u8> {
    let mut file = Vec::with_capacity(wanted + (1 << 20));
    file.extend([0x49, 0x60, 0x67, 0x2D]);
    i32(&mut file, 4);
    i64(&mut file, 7);
    i32(&mut file, 0);
    i32(&mut file, 1);
    file.extend([7; 16]);
    i32(&mut file, i32::from(i16::MAX));
    i32(&mut file, i32::from(i16::MAX));
    file.push(0);
    let count_at = file.len();
    i32(&mut file, 0);
    let mut subtasks = 0;
    while file.len() < wanted {
        subtask(&mut file, subtasks);
        subtasks += 1;
    }
    file[count_at..count_at + 4].copy_from_slice(&subtasks.to_be_bytes());
    file.extend([0xAC, 0xED, 0x00, 0x05, 0x70]);
    file
}

fn subtask(file: &mut Vec<u8>, index: i32) {
    i32(file, index);
    i32(file, 0);
    i32(file, 0);
    file.push(11);
    i64(file, 7);
    utf(file, "6cc2ae73-e689-3e3b-8d73-e927b20dfda7");
    i32(file, index);
    i32(file, 1);
    i64(file, -1);
    file.push(1);
    utf(
        file,
        "s3://bucket/job/chk-7/cc9e3c31-ddf8-3708-b8a0-1011d30ee76e",
    );
    i32(file, 512);
    file.extend([42; 512]);
    i32(file, i32::try_from(SHARED_FILES).expect("a small number"));
    for number in 0..SHARED_FILES {
        utf(file, &format!("{number:06}.sst"));
        file.push(2);
        i64(file, 64 << 20);
        utf(
            file,
            &format!(
                "s3://bucket/0123456789abcdef0123456789abcdef/shared/{index:08x}-{number:04x}"
            ),
        );
    }
    i32(file, 1);
    utf(file, "MANIFEST-000004");
    file.push(6);
    utf(file, "6ad6eba1-864c-3e74-9ab6-8c5c4642c19f");
    i64(file, 2048);
    utf(file, "6c476c9d-5fe4-327f-86d7-1c513203c78a");
    file.push(0);
    i32(file, 0);
    i32(file, 0);
}

fn i32(file: &mut Vec<u8>, value: i32) {
    file.extend(value.to_be_bytes());
}

fn i64(file: &mut Vec<u8>, value: i64) {
    file.extend(value.to_be_bytes());
}

fn utf(file: &mut Vec<u8>, text: &str) {
    file.extend(
        u16::try_from(text.len())
            .expect("a short text")
            .to_be_bytes(),
    );
    file.extend(text.as_bytes());
}

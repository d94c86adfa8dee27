//! Whatever decodes must encode to the same bytes, and show as many references to a rewriter as to
//! a walker. Run with `cargo +nightly fuzz run flink_metadata fuzz/corpus/flink_metadata
//! tests/fixtures/metadata tests/fixtures/metadata/edge`.

#![no_main]

use forkpoint::snapshot::flink::{self, FlinkPath, Location};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(metadata) = flink::decode(bytes) else {
        return;
    };
    assert_eq!(metadata.encode().unwrap(), bytes);
    let directory = FlinkPath::parse("s3://bucket/job/chk-1").unwrap();
    let mut walked = 0_usize;
    metadata.walk(&mut |reference| {
        walked += 1;
        match reference.location {
            Location::Absolute { path, .. }
            | Location::Segment { path, .. }
            | Location::Directory { path, .. } => {
                // What decoding accepts is a path.
                let path = FlinkPath::parse(&path.to_str_lossy()).unwrap();
                let _ = path.is_below(&directory);
            }
            Location::Relative { path, .. } => {
                let _ = directory.resolve(&path.to_str_lossy());
            }
            Location::Inline { .. } | Location::Empty => {}
        }
    });
    let mut rewritten = 0_usize;
    let copy = metadata
        .encode_with(&mut |_| {
            rewritten += 1;
            Ok(None)
        })
        .unwrap();
    assert_eq!(copy, bytes);
    assert_eq!(walked, rewritten);
});

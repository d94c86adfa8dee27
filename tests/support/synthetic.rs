//! Snapshots of any size, for tests that need more objects than a real fixture has.

use bytes::Bytes;
use forkpoint::store::{Location, Stores};
use futures::StreamExt;

/// A `_metadata` file of version 3: one operator, one subtask, and one incremental keyed handle
/// whose shared files are `files` (absolute path and size).
pub fn metadata(files: &[(String, u64)]) -> Vec<u8> {
    numbered_metadata(7, files)
}

/// As [`metadata`], of the checkpoint with the given number.
pub fn numbered_metadata(number: i64, files: &[(String, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    let utf = |out: &mut Vec<u8>, text: &str| {
        out.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        out.extend(text.as_bytes());
    };
    out.extend(0x4960_672Di32.to_be_bytes());
    out.extend(3i32.to_be_bytes());
    out.extend(number.to_be_bytes()); // checkpoint id
    out.extend(0i32.to_be_bytes()); // master states
    out.extend(1i32.to_be_bytes()); // operators
    out.extend([7; 16]); // operator id
    out.extend(1i32.to_be_bytes()); // parallelism
    out.extend(128i32.to_be_bytes()); // max parallelism
    out.push(0); // coordinator state
    out.extend(1i32.to_be_bytes()); // subtasks
    out.extend(0i32.to_be_bytes()); // index
    out.extend(0i32.to_be_bytes()); // managed operator state
    out.extend(0i32.to_be_bytes()); // raw operator state
    out.push(11); // incremental
    out.extend(7i64.to_be_bytes());
    utf(&mut out, "11111111-2222-3333-4444-555555555555");
    out.extend(0i32.to_be_bytes());
    out.extend(128i32.to_be_bytes());
    out.extend((-1i64).to_be_bytes());
    out.push(1); // meta: bytes
    utf(&mut out, "inline");
    out.extend(2i32.to_be_bytes());
    out.extend([1, 2]);
    out.extend(i32::try_from(files.len()).unwrap().to_be_bytes());
    for (n, (path, size)) in files.iter().enumerate() {
        utf(&mut out, &format!("{n:06}.sst"));
        out.push(2);
        out.extend(i64::try_from(*size).unwrap().to_be_bytes());
        utf(&mut out, path);
    }
    out.extend(0i32.to_be_bytes()); // private
    utf(&mut out, "66666666-7777-8888-9999-000000000000");
    out.push(0); // raw keyed state
    out.extend(0i32.to_be_bytes());
    out.extend(0i32.to_be_bytes());
    out
}

/// Lays a snapshot of `count` files of `size` bytes below `root` and returns its folder.
pub async fn lay(stores: &Stores, root: &Location, count: usize, size: usize) -> Location {
    let shared = root.join("shared").unwrap();
    let names: Vec<Location> = (0..count)
        .map(|n| shared.join(&format!("file-{n:06}")).unwrap())
        .collect();
    futures::stream::iter(names.iter().enumerate())
        .map(|(n, at)| async move {
            let content = vec![u8::try_from(n % 251).unwrap(); size];
            stores.put(at, Bytes::from(content), true).await.unwrap();
        })
        .buffer_unordered(32)
        .collect::<Vec<()>>()
        .await;
    let files: Vec<(String, u64)> = names
        .iter()
        .map(|at| (at.to_string(), size as u64))
        .collect();
    let snapshot = root.join("chk-7").unwrap();
    let at = snapshot.join("_metadata").unwrap();
    stores
        .put(&at, Bytes::from(metadata(&files)), true)
        .await
        .unwrap();
    snapshot
}

//! Uploads of what this process has, and verified downloads, on local disk, in memory and on real services.

// A test says that something is wrong by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use forkpoint::ErrorKind;
use forkpoint::progress::Cancel;
use forkpoint::store::{Content, Location, Options, Provider, Sha256Sum, Stores, UploadOptions};
use futures::StreamExt;
use support::engine::content;
use support::{Service, at, emulator_settings, local_stores, temp};

const MIB: usize = 1024 * 1024;
/// Parts of five MiB.
const PART: usize = 5 * MIB;

fn options() -> UploadOptions {
    UploadOptions {
        part_size: PART as u64,
        ..UploadOptions::default()
    }
}

fn stream(bytes: Vec<u8>, size: Option<u64>) -> Content {
    // Pieces of odd sizes.
    let pieces: Vec<_> = bytes
        .chunks(777_777)
        .map(|c| Ok(Bytes::copy_from_slice(c)))
        .collect();
    Content::Stream {
        stream: futures::stream::iter(pieces).boxed(),
        size,
    }
}

async fn every_size_and_source(stores: &Stores, root: &Location) {
    let dir = tempfile::tempdir().unwrap();
    for size in [0, 1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 17] {
        let bytes = content(&format!("{size}"), size);
        let sum = Sha256Sum::of(&bytes);
        let file = dir.path().join("file");
        std::fs::write(&file, &bytes).unwrap();
        let sources = [
            ("bytes", Content::from(bytes.clone())),
            ("file", Content::from(file.clone())),
            ("stream", stream(bytes.clone(), None)),
            ("sized", stream(bytes.clone(), Some(size as u64))),
        ];
        for (name, source) in sources {
            let place = root.join(&format!("{size}-{name}")).unwrap();
            let done = stores.upload(&place, source, &options()).await.unwrap();
            assert_eq!((done.size, done.sha256), (size as u64, sum), "{place}");
            let read = stores
                .read_verified(&place, size as u64, sum)
                .await
                .unwrap();
            assert!(read == bytes, "{place}");
            let to = at(dir.path().join("fetched").to_str().unwrap());
            stores
                .download(&place, size as u64, sum, &to, &Cancel::default())
                .await
                .unwrap();
            assert!(
                std::fs::read(to.local_path().unwrap()).unwrap() == bytes,
                "{place}"
            );
            // What is there stays.
            let other = content("other", size + 1);
            let e = stores
                .upload(&place, other.into(), &options())
                .await
                .unwrap_err();
            assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{place}: {e}");
            let wrong = stores
                .download(&place, size as u64 + 1, sum, &to, &Cancel::default())
                .await;
            assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Corrupt, "{place}");
            let wrong = Sha256Sum::of(b"no");
            let wrong = stores
                .download(&place, size as u64, wrong, &to, &Cancel::default())
                .await;
            assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Corrupt, "{place}");
            assert!(
                std::fs::read(to.local_path().unwrap()).unwrap() == bytes,
                "it stays"
            );
        }
    }
}

async fn what_fails_leaves_nothing(stores: &Stores, root: &Location) {
    let bytes = content("x", 3 * PART);
    let failing = |after: usize| {
        let pieces: Vec<_> = bytes
            .chunks(MIB)
            .take(after)
            .map(|c| Ok(Bytes::copy_from_slice(c)))
            .chain([Err(forkpoint::Error::new(
                ErrorKind::Unavailable,
                "the engine failed",
            ))])
            .collect();
        Content::Stream {
            stream: futures::stream::iter(pieces).boxed(),
            size: None,
        }
    };
    let place = root.join("failed").unwrap();
    for after in [0, 2, 7, 12] {
        let e = stores
            .upload(&place, failing(after), &options())
            .await
            .unwrap_err();
        assert!(e.to_string().contains("the engine failed"), "{e}");
    }
    for announced in [3 * PART as u64 - 1, 3 * PART as u64 + 1, 1] {
        let lying = stream(bytes.clone(), Some(announced));
        let e = stores.upload(&place, lying, &options()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    }
    let cancel = Cancel::default();
    cancel.cancel();
    let stopped = UploadOptions {
        cancel,
        ..options()
    };
    let e = stores
        .upload(&place, bytes.clone().into(), &stopped)
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled);
    assert_eq!(stores.find(&place).await.unwrap(), None);
    if let Ok(open) = stores.open_uploads(root).await {
        assert!(open.is_empty(), "{open:?}");
    }
    // Two at once: one wins, and the other learns so. The stand-in for Google looks at the condition only
    // when an upload begins.
    if root.provider() == Provider::Gcs {
        return;
    }
    let (one, other) = (content("one", 2 * PART + 1), content("other", 2 * PART + 1));
    let place = root.join("raced").unwrap();
    let options = options();
    let (a, b) = tokio::join!(
        stores.upload(&place, one.clone().into(), &options),
        stores.upload(&place, other.clone().into(), &options)
    );
    let winner = match (a, b) {
        (Ok(a), Err(e)) | (Err(e), Ok(a)) => {
            assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{e}");
            a
        }
        other => panic!("{place}: {other:?}"),
    };
    let size = one.len() as u64;
    stores
        .read_verified(&place, size, winner.sha256)
        .await
        .unwrap();
    if let Ok(open) = stores.open_uploads(root).await {
        assert!(open.is_empty(), "{open:?}");
    }
}

#[tokio::test]
async fn every_size_and_source_arrives_on_local_disk_and_in_memory() {
    let (_dir, root) = temp();
    every_size_and_source(&local_stores(), &root).await;
    every_size_and_source(&local_stores(), &at("memory:/uploads")).await;
}

#[tokio::test]
async fn every_size_and_source_arrives_on_every_service() {
    for service in Service::ALL {
        if service.is_there("uploads") {
            let stores = support::emulator_stores();
            every_size_and_source(&stores, &service.place(0, "uploads")).await;
        }
    }
}

#[tokio::test]
async fn an_upload_that_fails_leaves_nothing() {
    let (_dir, root) = temp();
    what_fails_leaves_nothing(&local_stores(), &root).await;
    for service in Service::ALL {
        if service.is_there("failing uploads") {
            let stores = support::emulator_stores();
            what_fails_leaves_nothing(&stores, &service.place(0, "failing")).await;
        }
    }
}

/// More uploads at once than there is memory for: they wait for each other, and none for ever.
#[tokio::test]
async fn uploads_share_a_small_memory() {
    let mut places = vec![temp().1];
    for service in Service::ALL {
        if service.is_there("uploads in little memory") {
            places.push(service.place(0, "memory"));
        }
    }
    let mut settings = Options::default().with("FORKPOINT_RELAY_MEMORY_MIB", "12");
    for (name, value) in emulator_settings() {
        settings = settings.with(name, value);
    }
    for root in places {
        let stores = Stores::new(settings.clone());
        let options = options();
        let uploads = (0..8).map(|n| {
            let place = root.join(&format!("{n}")).unwrap();
            let (stores, options) = (stores.clone(), options.clone());
            async move {
                let source = stream(content("many", 3 * PART), None);
                stores.upload(&place, source, &options).await.unwrap()
            }
        });
        let all = futures::future::join_all(uploads);
        let done = tokio::time::timeout(std::time::Duration::from_secs(120), all).await;
        let done = done.unwrap_or_else(|_| panic!("{root}: the uploads wait for each other"));
        assert!(done.iter().all(|d| d.size == 3 * PART as u64));
    }
}

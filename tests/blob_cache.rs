//! The cache against real servers and a real HA store: what is wrong is never believed, one fetch serves
//! all who wait, and what is in use stays.

#![cfg(unix)]
// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "blob_client/served.rs"]
mod served;
#[path = "support/waits.rs"]
mod waits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forkpoint::ErrorKind;
use forkpoint::blob::client::BlobClient;
use forkpoint::blob::{
    BlobCache, BlobSource, Class, Digest, JobEvent, LocalOptions, Message, OffloadRule, OnExit,
    Outcome, ReceiverId, SpaceRule, SweepReason,
};
use futures::StreamExt;
use futures::future::join_all;
use served::{
    Proxy, Served, Trick, bytes, cache, cache_config, files, job, key, quick, source, tamper,
};
use waits::until;

fn blobs(cache: &Path) -> Vec<PathBuf> {
    files(&cache.join("jobs"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_who_wait_cause_one_fetch() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(4 << 20, 1);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let proxy = Proxy::start(served.address, &[Trick::Fair]).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![source(proxy.address)]).await;
    let guards: Vec<_> = (0..1000).map(|_| cache.attach(&j)).collect();
    let handles = join_all(guards.iter().map(|g| g.get(&digest))).await;
    for handle in &handles {
        assert_eq!(handle.as_ref().unwrap().digest(), &digest);
    }
    assert_eq!(handles[999].as_ref().unwrap().bytes().await.unwrap(), whole);
    let stats = cache.stats();
    assert_eq!(
        (stats.fetches, stats.sources[0].asked, stats.files),
        (1, 1, 1)
    );
    assert_eq!(stats.joined + stats.hits + 1, 1000);
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1);
    assert!(proxy.answered.load(Ordering::SeqCst) < 5 << 20);
    // A failure is told to all who waited, and not remembered.
    let missing = Digest::of(b"not there");
    let failed = join_all(guards.iter().take(50).map(|g| g.get(&missing))).await;
    assert!(
        failed
            .iter()
            .all(|f| f.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound))
    );
    let late = served.ship(&j, b"not there", Class::Retained).await;
    assert_eq!(
        guards[0].get(&late).await.unwrap().bytes().await.unwrap(),
        "not there"
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_goes_on_while_anybody_waits_and_ends_with_the_last() {
    let served = Served::start().await;
    let j = job("j1");
    let digest = served.ship(&j, &bytes(1 << 20, 2), Class::Retained).await;
    // The first connection says nothing; the cache gives it up after its idle time.
    let proxy = Proxy::start(served.address, &[Trick::Silent, Trick::Fair]).await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = cache_config(dir.path());
    config.idle_timeout = Duration::from_secs(20);
    let mut client = quick(proxy.address);
    client.idle_timeout = Duration::from_secs(2);
    let from: Arc<dyn BlobSource> = Arc::new(forkpoint::blob::ServerSource::new(
        BlobClient::new(client).unwrap(),
    ));
    let cache = Arc::new(BlobCache::open(config, vec![from]).await.unwrap());
    let ask = |cache: Arc<BlobCache>| {
        let j = j.clone();
        tokio::spawn(async move { cache.attach(&j).get(&digest).await.map(|_| ()) })
    };
    let (first, second) = (ask(Arc::clone(&cache)), ask(Arc::clone(&cache)));
    until("both wait for one fetch", || {
        proxy.connections.load(Ordering::SeqCst) == 1 && cache.stats().joined == 1
    })
    .await;
    first.abort();
    second.await.unwrap().unwrap();
    assert_eq!(cache.stats().fetches, 1);

    // All leave: the fetch ends, and leaves nothing behind.
    let proxy = Proxy::start(served.address, &[Trick::Silent]).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(
        BlobCache::open(cache_config(dir.path()), vec![source(proxy.address)])
            .await
            .unwrap(),
    );
    let only = ask(Arc::clone(&cache));
    until("a fetch begins", || {
        proxy.connections.load(Ordering::SeqCst) == 1
    })
    .await;
    until("a part is there", || {
        !files(&dir.path().join("tmp")).is_empty()
    })
    .await;
    only.abort();
    until("the part is gone", || {
        files(&dir.path().join("tmp")).is_empty()
    })
    .await;
    assert_eq!((cache.stats().files, cache.stats().reserved), (0, 0));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_sends_wrong_bytes_is_not_believed_and_the_next_one_is_asked() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(2 << 20, 3);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let bad = Proxy::start(served.address, &[Trick::Flip(1_000_000)]).await;
    let dir = tempfile::tempdir().unwrap();
    let alone = cache(&dir.path().join("a"), vec![source(bad.address)]).await;
    let refused = alone.attach(&j).get(&digest).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert_eq!(
        (alone.stats().files, files(&dir.path().join("a/tmp")).len()),
        (0, 0)
    );
    let both = cache(
        &dir.path().join("b"),
        vec![source(bad.address), served.source()],
    )
    .await;
    let handle = both.attach(&j).get(&digest).await.unwrap();
    assert_eq!(handle.bytes().await.unwrap(), whole);
    assert_eq!(std::fs::read(handle.path().unwrap()).unwrap(), whole);
    let sources = both.stats().sources;
    assert_eq!(
        (sources[0].wrong, sources[0].fetched, sources[1].fetched),
        (1, 0, 1)
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_at_rest_in_the_ha_store_sends_the_cache_to_the_server() {
    let served = Served::start().await;
    let dir = tempfile::tempdir().unwrap();
    let whole = bytes(300_000, 4);
    let other = bytes(300_000, 5);
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Option<Damage>); 5] = [
        ("flipped", Some(|b| b[150_000] ^= 0x10)),
        ("truncated", Some(|b| b.truncate(299_999))),
        ("emptied", Some(Vec::clear)),
        ("extended", Some(|b| b.push(0))),
        ("swapped", None),
    ];
    for (name, damage) in cases {
        let j = job(name);
        let digest = served.ship(&j, &whole, Class::Retained).await;
        let object = served.objects(&j)[0].clone();
        match damage {
            Some(damage) => tamper(&object, damage),
            None => tamper(&object, |b| b.clone_from(&other)),
        }
        let cache = cache(
            &dir.path().join(name),
            vec![served.ha_source(), served.source()],
        )
        .await;
        let handle = cache.attach(&j).get(&digest).await.unwrap();
        assert_eq!(
            std::fs::read(handle.path().unwrap()).unwrap(),
            whole,
            "{name}"
        );
        let sources = cache.stats().sources;
        // Of an object that is too long only what belongs to it is read.
        let by_server = u64::from(name != "extended");
        assert_eq!(sources[1].fetched, by_server, "{name}: {sources:?}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_source_stands_in_for_the_other() {
    let served = Served::start().await;
    let j = job("j1");
    let (one, two) = (bytes(100_000, 6), bytes(100_000, 7));
    let first = served.ship(&j, &one, Class::Retained).await;
    let message = served.ship(&j, &two, Class::Recreatable).await;
    let (ha, address) = (served.ha_source(), served.address);
    let dir = tempfile::tempdir().unwrap();
    let caches = cache(&dir.path().join("a"), vec![ha, source(address)]).await;
    let guard = caches.attach(&j);
    assert_eq!(guard.read(&first, Class::Retained).await.unwrap(), one);
    // The HA store does not have it.
    assert_eq!(guard.read(&message, Class::Recreatable).await.unwrap(), two);
    let sources = caches.stats().sources;
    assert_eq!((sources[0].fetched, sources[1].fetched), (1, 1));
    // Without HA store.
    let moved = served.dir.path().join("ha-away");
    std::fs::rename(served.dir.path().join("ha"), &moved).unwrap();
    let other = cache(
        &dir.path().join("b"),
        vec![served.ha_source(), source(address)],
    )
    .await;
    assert_eq!(
        other
            .attach(&j)
            .read(&first, Class::Retained)
            .await
            .unwrap(),
        one
    );
    std::fs::rename(&moved, served.dir.path().join("ha")).unwrap();
    // Without server.
    let ha = served.ha_source();
    let _dir = served.stop().await;
    let third = cache(&dir.path().join("c"), vec![ha, source(address)]).await;
    assert_eq!(
        third
            .attach(&j)
            .read(&first, Class::Retained)
            .await
            .unwrap(),
        one
    );
    // Without either: one says no, the other nothing.
    let none = third.attach(&j).get(&message).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Unavailable, "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_quarantined_and_fetched_again() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(1 << 20, 8);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![served.source()]).await;
    let guard = cache.attach(&j);
    guard.get(&digest).await.unwrap();
    let file = blobs(dir.path())[0].clone();
    // Somebody wrote to it: its modification time has changed.
    tamper(&file, |b| b[500_000] ^= 1);
    let handle = guard.get(&digest).await.unwrap();
    assert_eq!(std::fs::read(handle.path().unwrap()).unwrap(), whole);
    assert_eq!((cache.stats().damaged, cache.stats().fetches), (1, 2));
    assert_eq!(files(&dir.path().join("quarantine")).len(), 1);

    // A medium that lost a bit: nothing about the file has changed but its bytes.
    let meta = std::fs::metadata(&file).unwrap();
    let modified = meta.modified().unwrap();
    tamper(&file, |b| b[700_000] ^= 1);
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    let handle = guard.get(&digest).await.unwrap();
    let found = handle.bytes().await.unwrap_err();
    assert_eq!(found.kind(), ErrorKind::Corrupt, "{found}");
    // What lies before the damage is handed out, and not a byte of the damaged block.
    let mut pieces = handle.stream(Some(0..131_072)).unwrap();
    assert_eq!(pieces.next().await.unwrap().unwrap(), whole[..131_072]);
    drop(handle);
    assert_eq!(guard.read(&digest, Class::Retained).await.unwrap(), whole);
    assert_eq!((cache.stats().damaged, cache.stats().fetches), (2, 3));
    // And `read` does both by itself.
    tamper(&file, |b| b[3] ^= 1);
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert_eq!(guard.read(&digest, Class::Retained).await.unwrap(), whole);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_a_handle_are_the_bytes_of_the_blob() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(5_000_000, 9);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![served.source()]).await;
    let handle = cache.attach(&j).get(&digest).await.unwrap();
    for range in [
        0..1,
        131_071..131_073,
        2_000_000..4_999_999,
        4_999_999..5_000_000,
        7..7,
    ] {
        let mut got = Vec::new();
        let mut pieces = handle.stream(Some(range.clone())).unwrap();
        while let Some(piece) = pieces.next().await {
            got.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(
            got,
            whole[range.start as usize..range.end as usize],
            "{range:?}"
        );
    }
    assert!(handle.stream(Some(0..5_000_001)).is_err());
    let empty = cache.attach(&j).get(&Digest::of(b"")).await.unwrap();
    assert_eq!(
        (empty.bytes().await.unwrap().len(), empty.path()),
        (0, None)
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_not_in_use_is_given_up_for_space() {
    let served = Served::start().await;
    let (old, live) = (job("old"), job("live"));
    let mut digests = Vec::new();
    for n in 0..4 {
        let j = if n == 0 { &old } else { &live };
        digests.push(
            served
                .ship(j, &bytes(100_000, 20 + n), Class::Retained)
                .await,
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = cache_config(dir.path());
    config.local.space = SpaceRule {
        max_bytes: 250_000,
        min_free: 0,
    };
    let cache = BlobCache::open(config, vec![served.source()])
        .await
        .unwrap();
    drop(cache.attach(&old).get(&digests[0]).await.unwrap());
    let guard = cache.attach(&live);
    let one = guard.get(&digests[1]).await.unwrap();
    // The unused job's file goes first, although it is not needed less recently than nothing else.
    let two = guard.get(&digests[2]).await.unwrap();
    let here = |cache: &BlobCache| {
        cache
            .files()
            .iter()
            .map(|f| f.key.digest)
            .collect::<Vec<_>>()
    };
    assert!(!here(&cache).contains(&digests[0]) && here(&cache).len() == 2);
    // Both are pinned: nothing can go, and nothing is overfilled.
    let full = guard.get(&digests[3]).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Refused, "{full}");
    assert!(full.to_string().contains("200000"), "{full}");
    assert_eq!((cache.stats().bytes, cache.stats().reserved), (200_000, 0));
    assert_eq!(one.bytes().await.unwrap(), bytes(100_000, 21));
    drop(one);
    let three = guard.get(&digests[3]).await.unwrap();
    let left = here(&cache);
    assert!(left.contains(&digests[2]) && left.contains(&digests[3]) && left.len() == 2);
    assert_eq!(
        (cache.stats().evictions, cache.stats().evicted_bytes),
        (2, 200_000)
    );
    assert!(two.path().unwrap().exists() && three.path().unwrap().exists());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_stay_while_a_guard_lives_and_an_interval_longer() {
    let served = Served::start().await;
    let j = job("j1");
    let jar = served.ship(&j, b"a jar", Class::Retained).await;
    let message = served.ship(&j, b"a message", Class::Recreatable).await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = cache_config(dir.path());
    config.retention = Duration::from_millis(300);
    config.local.on_exit = OnExit::Keep;
    let cache = BlobCache::open(config.clone(), vec![served.source()])
        .await
        .unwrap();
    let guard = cache.attach(&j);
    drop(guard.get(&jar).await.unwrap());
    let pinned = guard.get_as(&message, Class::Recreatable).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(cache.stats().files, 2);
    // Without handle the message goes although the job is attached; the jar stays.
    drop(pinned);
    until("the message goes", || cache.stats().files == 1).await;
    assert_eq!(
        guard.get(&jar).await.unwrap().bytes().await.unwrap(),
        "a jar"
    );
    assert_eq!(cache.stats().fetches, 2);
    // A second guard keeps it when the first goes.
    let second = cache.attach(&j);
    drop(guard);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(cache.stats().files, 1);
    drop(second);
    // It is counted once it is gone.
    until("the jar goes", || cache.stats().expired == 2).await;
    assert_eq!((cache.stats().files, blobs(dir.path()).len()), (0, 0));

    // What a process before left is verified before its first use, and goes if nobody needs it.
    let guard = cache.attach(&j);
    guard.get(&jar).await.unwrap();
    cache.close().await.unwrap();
    drop(guard);
    tamper(&blobs(dir.path())[0], |b| b[0] ^= 1);
    std::fs::write(dir.path().join("tmp/0000000000000001.part"), b"half").unwrap();
    config.retention = Duration::from_secs(60);
    let cache = BlobCache::open(config.clone(), vec![served.source()])
        .await
        .unwrap();
    assert!(!dir.path().join("tmp/0000000000000001.part").exists());
    assert_eq!(
        cache.attach(&j).read(&jar, Class::Retained).await.unwrap(),
        "a jar"
    );
    assert_eq!((cache.stats().damaged, cache.stats().fetches), (1, 1));
    let twice = BlobCache::open(config.clone(), Vec::new())
        .await
        .unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Refused);
    cache.close().await.unwrap();
    config.retention = Duration::from_millis(100);
    let cache = BlobCache::open(config, Vec::new()).await.unwrap();
    until("nobody needs it", || cache.stats().files == 0).await;
    // By default everything goes at the end.
    let gone = tempfile::tempdir().unwrap();
    let cache = served::cache(gone.path(), vec![served.source()]).await;
    cache.attach(&j).get(&jar).await.unwrap();
    cache.close().await.unwrap();
    assert_eq!(blobs(gone.path()).len(), 0);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_job_is_told_and_an_ended_job_gives_nothing() {
    let served = Served::start().await;
    let j = job("j1");
    let digest = served.ship(&j, b"a jar", Class::Retained).await;
    let outcome = Outcome::Cancelled;
    served
        .client()
        .job_event(&j, &JobEvent::Terminal { outcome })
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![served.ha_source(), served.source()]).await;
    let over = cache.attach(&j).get(&digest).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::Refused, "{over}");
    assert!(over.to_string().contains("over"), "{over}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_fetch_goes_on_where_it_stopped() {
    let served = Served::start().await;
    let j = job("j1");
    let whole = bytes(8 << 20, 10);
    let digest = served.ship(&j, &whole, Class::Retained).await;
    let cut = Trick::CutAfter(3_000_000);
    let tricks = [cut, cut, Trick::Refuse, Trick::Refuse, Trick::Fair];
    let proxy = Proxy::start(served.address, &tricks).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![source(proxy.address)]).await;
    assert_eq!(
        cache
            .attach(&j)
            .read(&digest, Class::Retained)
            .await
            .unwrap(),
        whole
    );
    let stats = cache.stats();
    assert_eq!(
        (
            stats.fetches,
            stats.sources[0].asked,
            stats.sources[0].broken
        ),
        (1, 5, 4)
    );
    let sent = proxy.answered.load(Ordering::SeqCst);
    assert!(sent < whole.len() as u64 + 2 * (3 << 20), "{sent}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_to_three_receivers_and_is_free_when_each_has_acknowledged() {
    let served = Served::start().await;
    let (client, j) = (served.client(), job("j1"));
    served.ship(&j, b"a jar", Class::Retained).await;
    let text = bytes(2 << 20, 11);
    let names: Vec<ReceiverId> = ["tm-1", "tm-2", "tm-3"]
        .map(|n| ReceiverId::parse(n).unwrap())
        .to_vec();
    let receivers = names.iter().cloned().collect();
    let rule = OffloadRule::default();
    let small = client
        .offload(&j, "small".into(), &receivers, rule)
        .await
        .unwrap();
    assert_eq!(small, Message::Inline("small".into()));
    assert!(
        client
            .offload(&j, "x".into(), &[].into(), rule)
            .await
            .is_err()
    );
    let message = client
        .offload(&j, text.clone().into(), &receivers, rule)
        .await
        .unwrap();
    let Message::Blob(offloaded) = &message else {
        panic!("{message:?}")
    };
    let holders = || async { client.why(&offloaded.key).await.unwrap().why };
    assert_eq!(holders().await, SweepReason::Held { holders: 3 });

    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), vec![served.source()]).await;
    let guard = cache.attach(&j);
    // What cannot be decoded is not acknowledged.
    let bad = guard
        .receive(&client, &message, &names[0], |_| {
            Err::<(), _>(forkpoint::Error::corrupt("no"))
        })
        .await;
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(holders().await, SweepReason::Held { holders: 3 });
    let stranger = ReceiverId::parse("tm-9").unwrap();
    let not_mine = guard
        .receive(&client, &message, &stranger, |b| Ok(b.len()))
        .await
        .unwrap_err();
    assert_eq!(not_mine.kind(), ErrorKind::Invalid);
    client.acknowledge(&offloaded.key, &stranger).await.unwrap();
    for (n, me) in names.iter().enumerate() {
        let got = guard
            .receive(&client, &message, me, |b| Ok(b.to_vec()))
            .await
            .unwrap();
        got.acknowledged.unwrap();
        assert_eq!(got.value, text);
        // Told twice is told once.
        client.acknowledge(&offloaded.key, me).await.unwrap();
        match 2 - n {
            0 => assert!(matches!(holders().await, SweepReason::KeptUntil { .. })),
            left => assert_eq!(holders().await, SweepReason::Held { holders: left }),
        }
    }
    assert_eq!(cache.stats().fetches, 1);
    // The server may remove it by now: it is not given up here for space, only when its time comes.
    let file = cache
        .files()
        .into_iter()
        .find(|f| f.key == offloaded.key)
        .unwrap();
    assert!(!file.refetchable && file.pins == 0);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_needs_no_more_space_than_its_limit_even_for_many_at_once() {
    let served = Served::start().await;
    let j = job("j1");
    let mut digests = Vec::new();
    for n in 0..12 {
        digests.push(
            served
                .ship(&j, &bytes(1 << 20, 30 + n), Class::Retained)
                .await,
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = cache_config(dir.path());
    config.local = LocalOptions::new(dir.path());
    config.local.space.max_bytes = 5 << 20;
    config.most_fetches = 3;
    let cache = BlobCache::open(config, vec![served.ha_source(), served.source()])
        .await
        .unwrap();
    let guard = cache.attach(&j);
    let one = |n: usize| {
        let (guard, digests) = (&guard, &digests);
        async move {
            let got = guard.get(&digests[n]).await?.bytes().await?;
            assert_eq!(Digest::of(&got), digests[n]);
            Ok::<_, forkpoint::Error>(())
        }
    };
    for round in 0..3 {
        let all = futures::stream::iter(0..12)
            .map(|n| one((n * 5 + round) % 12))
            .buffer_unordered(2);
        let done: Vec<_> = all.collect().await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert!(cache.stats().bytes <= 5 << 20);
    }
    assert!(cache.stats().evictions > 0);
    let _ = key(&j, &digests[0]);
    served.stop().await;
}

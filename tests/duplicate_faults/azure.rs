//! Azure's copies that stay pending.

use std::time::Duration;

use forkpoint::store::{DuplicateOptions, Location, Method as StoreMethod, Receipt, Stores};
use forkpoint::{Error, ErrorKind};

use crate::fault::{
    Action, Content, FaultServer, Gate, Kind, Meta, Object, Pending, PendingEnd, Rule, Service,
};
use crate::waits::until;
use crate::{Bench, MIB, assert_kind};

/// A service whose copies are pending for the first looks at them.
async fn bench(end: PendingEnd) -> Bench {
    let bench = Bench::new(Service::Azure).await;
    bench.server.faults().pending = Some(Pending {
        polls: 3,
        ..Pending::of(Duration::ZERO, end)
    });
    bench
}

#[tokio::test]
async fn a_pending_copy_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    let receipt = bench.duplicate().await.unwrap();
    assert_eq!(receipt.attempts, 1);
    assert_eq!(bench.holds(1), Some(true));
    let now = bench.stores.stat(&bench.at(1, "b")).await.unwrap();
    assert_eq!(receipt.destination_tag, now.tag);
}

#[tokio::test]
async fn a_pending_copy_that_fails_or_is_aborted_is_an_error() {
    for end in [PendingEnd::Failed, PendingEnd::Aborted] {
        let bench = bench(end).await;
        assert_kind(bench.duplicate().await, ErrorKind::Unavailable);
        // Not even the empty blob that the service leaves.
        assert_eq!(bench.holds(1), None);
    }
}

#[tokio::test]
async fn looks_at_a_pending_copy_that_fail_are_repeated() {
    let bench = bench(PendingEnd::Success).await;
    let busy = Action::Fail {
        status: 503,
        code: "ServerBusy",
    };
    bench
        .server
        .add(Rule::on(Kind::Head, busy).after(2).times(2));
    bench.duplicate().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_lost_reply_to_a_copy_that_is_pending_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    let lost = Action::LoseReply { after: None };
    bench.server.add(bench.on_copy(lost).times(1));
    bench.duplicate().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn a_lost_reply_to_an_overwrite_that_is_pending_is_waited_for() {
    let bench = bench(PendingEnd::Success).await;
    bench.put_seed(1, "b", 2);
    let lost = Action::LoseReply { after: None };
    bench.server.add(bench.on_copy(lost).times(1));
    bench.overwrite().await.unwrap();
    assert_eq!(bench.holds(1), Some(true));
}

#[tokio::test]
async fn another_writer_during_a_pending_copy_is_a_conflict() {
    let bench = bench(PendingEnd::Success).await;
    // For as long as nobody comes between.
    bench.server.faults().pending = Some(Pending {
        polls: u32::MAX,
        ..Pending::of(Duration::ZERO, PendingEnd::Success)
    });
    let other = async {
        until("the copy is pending", || bench.copies() > 0).await;
        bench.put_seed(1, "b", 2);
    };
    let (result, ()) = tokio::join!(bench.duplicate(), other);
    assert_kind(result, ErrorKind::Conflict);
    assert_eq!(bench.holds(2), Some(true));
}

/// From the first account to the second.
struct Accounts {
    server: FaultServer,
    stores: Stores,
    from: Location,
    to: Location,
}

impl Accounts {
    async fn new(size: u64) -> Accounts {
        let server = FaultServer::start().await;
        let meta = Meta {
            headers: [("content-type", "text/x"), ("meta-who", "us")]
                .map(|(n, v)| (n.to_string(), v.to_string()))
                .into(),
            ..Meta::default()
        };
        let content = Content::of_seed(1, size);
        server.put(Service::Azure, "faultone/one", "a", content, meta);
        Accounts {
            stores: server.stores_of_both_accounts(),
            server,
            from: Location::parse("abfss://one@faultone.dfs.core.windows.net/a").unwrap(),
            to: Location::parse("abfss://two@faulttwo.dfs.core.windows.net/b").unwrap(),
        }
    }

    async fn duplicate(&self) -> Result<Receipt, Error> {
        let options = DuplicateOptions::default();
        self.stores.duplicate(&self.from, &self.to, &options).await
    }

    fn there(&self) -> Option<std::sync::Arc<Object>> {
        self.server.get(Service::Azure, "faulttwo/two", "b")
    }

    fn block_copies(&self) -> usize {
        let records = self.server.log().records_of("b");
        records.iter().filter(|r| r.kind == Kind::CopyPart).count()
    }
}

#[tokio::test]
async fn between_accounts_the_service_copies_blocks_from_a_signed_url() {
    for (size, blocks) in [
        (0, 0),
        (1, 1),
        (64 * MIB, 1),
        (64 * MIB + 1, 2),
        (1 << 40, 16_384),
    ] {
        let accounts = Accounts::new(size).await;
        let receipt = accounts.duplicate().await.unwrap();
        assert_eq!(receipt.method, StoreMethod::AzureBlockCopy);
        assert_eq!(accounts.block_copies(), blocks);
        let there = accounts.there().unwrap();
        assert!(*there.content == Content::of_seed(1, size));
        assert_eq!(there.meta.headers["content-type"], "text/x");
        assert_eq!(there.meta.headers["meta-who"], "us");
    }
}

#[tokio::test]
async fn a_killed_block_copy_goes_on_with_the_missing_blocks() {
    let accounts = Accounts::new(640 * MIB).await;
    let hang = Action::Wait(Gate::new());
    accounts.server.add(Rule::on(Kind::CopyPart, hang).after(7));
    tokio::select! {
        result = accounts.duplicate() => panic!("not killed: {result:?}"),
        () = until("seven blocks are there", || accounts.block_copies() == 7) => {}
    }
    assert!(accounts.there().is_none());
    accounts.server.faults().clear_rules();
    accounts.server.log().reset();
    accounts.duplicate().await.unwrap();
    assert_eq!(accounts.block_copies(), 3);
    assert!(*accounts.there().unwrap().content == Content::of_seed(1, 640 * MIB));
}

#[tokio::test]
async fn a_service_that_cannot_read_the_other_account_has_us_relay() {
    for (status, code) in [(403, "CannotVerifyCopySource"), (501, "NotImplemented")] {
        let accounts = Accounts::new(3 * MIB).await;
        accounts
            .server
            .add(Rule::on(Kind::CopyPart, Action::Fail { status, code }));
        let receipt = accounts.duplicate().await.unwrap();
        assert_eq!(receipt.method, StoreMethod::Relay);
        assert!(*accounts.there().unwrap().content == Content::of_seed(1, 3 * MIB));
    }
}

#[tokio::test]
async fn a_source_that_changes_between_two_blocks_is_a_conflict() {
    let accounts = Accounts::new(640 * MIB).await;
    let gate = Gate::new();
    let wait = Action::Wait(gate.clone());
    accounts.server.add(Rule::on(Kind::CopyPart, wait).after(3));
    let other = async {
        until("three blocks are copied", || accounts.block_copies() == 3).await;
        let size = 640 * MIB;
        accounts
            .server
            .put_seed(Service::Azure, "faultone/one", "a", 2, size);
        // Of the new content from now on.
        gate.open_for_good();
    };
    let (result, ()) = tokio::join!(accounts.duplicate(), other);
    assert_kind(result, ErrorKind::Conflict);
    assert!(accounts.there().is_none());
}

#[tokio::test]
async fn a_lost_reply_to_a_block_list_is_a_success_and_a_foreign_blob_is_kept() {
    let accounts = Accounts::new(65 * MIB).await;
    let lost = Action::LoseReply { after: None };
    let rule = Rule::on(Kind::CompleteUpload, lost).times(1);
    accounts.server.add(rule);
    accounts.duplicate().await.unwrap();
    let again = accounts.duplicate().await;
    assert_kind(again, ErrorKind::AlreadyExists);
}
